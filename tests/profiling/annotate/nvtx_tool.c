/* A tool for NVTX's injection interface: writes what a program sends, one line per event, to $NVTX_LINES.
 *
 *   domain NAME | category ID NAME | string TEXT
 *   push THREAD DOMAIN CATEGORY COLOUR PAYLOAD REGISTERED TEXT | pop THREAD DOMAIN | mark DOMAIN TEXT
 *   start ID DOMAIN TEXT | end ID DOMAIN
 *
 * Fields are separated by tabs. The layouts below are NVTX's public binary interface. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLBACKS = 1, CORE2 = 5, MARK = 1, START = 2, END = 3, PUSH = 4, POP = 5, CATEGORY = 8, STRING = 10, CREATE = 12 };
enum { PAYLOAD_NONE = 0, PAYLOAD_INT64 = 2, PAYLOAD_DOUBLE = 3, MESSAGE_REGISTERED = 3 };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colour_type;
    uint32_t colour;
    int32_t payload_type, reserved;
    union { int64_t integer; double real; } payload;
    int32_t message_type;
    const char *message;
} attributes_t;

typedef struct {
    size_t size;
    int (*functions)(int module, void ****table, unsigned *count);
} callbacks_t;

static FILE *lines;

static void payload(char *text, size_t size, const attributes_t *event) {
    if (event->payload_type == PAYLOAD_INT64) snprintf(text, size, "%lld", (long long)event->payload.integer);
    else if (event->payload_type == PAYLOAD_DOUBLE) snprintf(text, size, "%g", event->payload.real);
    else snprintf(text, size, "-");
}

static int push(const char *domain, const attributes_t *event) {
    char value[64];
    payload(value, sizeof value, event);
    return fprintf(lines, "push\t%d\t%s\t%u\t%06x\t%s\t%d\t%s\n", gettid(), domain, event->category,
                   event->colour & 0xffffff, value, event->message_type == MESSAGE_REGISTERED, event->message);
}

static int pop(const char *domain) { return fprintf(lines, "pop\t%d\t%s\n", gettid(), domain); }

static uint64_t start(const char *domain, const attributes_t *event) {
    static uint64_t started;
    fprintf(lines, "start\t%llu\t%s\t%s\n", (unsigned long long)++started, domain, event->message);
    return started;
}

static void end(const char *domain, uint64_t id) {
    fprintf(lines, "end\t%llu\t%s\n", (unsigned long long)id, domain);
}

static void mark(const char *domain, const attributes_t *event) {
    fprintf(lines, "mark\t%s\t%s\n", domain, event->message);
}

static void category(const char *domain, uint32_t id, const char *name) {
    (void)domain;
    fprintf(lines, "category\t%u\t%s\n", id, name);
}

static const char *string(const char *domain, const char *text) {
    (void)domain;
    fprintf(lines, "string\t%s\n", text);
    return strdup(text);
}

static const char *create(const char *name) {
    fprintf(lines, "domain\t%s\n", name);
    return strdup(name);
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const callbacks_t *callbacks = export_table(CALLBACKS);
    void ***table;
    unsigned count;
    if (!(lines = fopen(getenv("NVTX_LINES"), "a")) || !callbacks->functions(CORE2, &table, &count)) return 0;
    setlinebuf(lines);
    *table[MARK] = mark;
    *table[START] = start;
    *table[END] = end;
    *table[PUSH] = push;
    *table[POP] = pop;
    *table[CATEGORY] = category;
    *table[STRING] = string;
    *table[CREATE] = create;
    return 1;
}
