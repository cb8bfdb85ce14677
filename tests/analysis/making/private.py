"""Plants private values in a report wherever nsys keeps them: `plant(report)`; `VALUES` are what was planted."""

import sqlite3
from contextlib import closing

from nvtx_kernels.analysis.readers.nsys_tables import NEEDED

TOKEN = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm12345678"
AWS_KEY = "AKIA" + "IOSFODNN7SAMPLE1"
SSH_KEY = "ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAAIPlantedPlantedPlantedPlantedPlanted"
PRIVATE_KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAAplanted\n-----END OPENSSH PRIVATE KEY-----"
)
PASSWORD = "correct4horse9battery"
E_MAIL = "jane.doe@example-lab.org"
HOME = "/home/jdoe-planted/secret-project"
WINDOWS_HOME = r"C:\Users\jdoe-planted\secret-project"
ADDRESS = "10.23.45.67"
HOST = "gpu-node-0417"
USER = "jdoe-planted"
UUID = "4a170c9a-0f4f-c4f1-a51d-5c938aeb3497"
PCI = "0000:3b:00.0"
DATE = "2026-11-20T11:14:52"
PROCESS = "planted_process"
OUTPUT = "planted output: epoch 1 loss 3.14"
ARGUMENT = "--planted-argument"
THREAD = "planted_thread"
PAYLOAD = '{"planted": "payload"}'
UNREFERENCED = "planted string that nobody refers to"
MARK = "planted mark of somebody else"
VALUES = (
    TOKEN, AWS_KEY, SSH_KEY, PRIVATE_KEY, PASSWORD, E_MAIL, HOME, WINDOWS_HOME, ADDRESS, HOST, USER, UUID, PCI,
    DATE, PROCESS, OUTPUT, ARGUMENT, THREAD, PAYLOAD, UNREFERENCED, MARK,
)  # fmt: skip

# Table: its columns, and its rows. Strings are added with their texts.
TABLES = {
    "META_DATA_CAPTURE": ("name value", [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f'HF_TOKEN="{TOKEN}"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f'DB_PASSWORD="{PASSWORD}"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f'AWS_ACCESS_KEY_ID="{AWS_KEY}"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f'USER="{USER}"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f'DEPLOY_KEY="{PRIVATE_KEY}"'),
        ("PROCESS_0:COMMAND", "python3"),
        ("PROCESS_0:ARGUMENT_0", ARGUMENT),
        ("PROCESS_0:WORKING_DIR", HOME),
        ("PROCESS_0:USER_NAME", USER),
        ("PROFILING_SESSION_UUID", UUID),
        ("DEVICE_DISPLAY_NAME", HOST),
    ]),
    "META_DATA_EXPORT": ("name value", [
        ("EXPORT_HOST", HOST), ("EXPORT_USER", USER), ("EXPORT_TIME_UTC", DATE),
        ("EXPORT_PARAM_INPUT_PATH_ABS", f"{HOME}/run.nsys-rep"),
    ]),
    "TARGET_INFO_SYSTEM_ENV": ("globalVid devStateName name nameEnum value", [
        (1 << 48, "Local (CLI)", "Hostname", 1, HOST), (1 << 48, "Local (CLI)", "SystemUID", 2, UUID),
        (1 << 48, "Local (CLI)", "NicInfo", 3, f"eth0 {ADDRESS}"),
    ]),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs utcTime localTime", [(1795173292279457769, DATE, DATE)]),
    "PROCESSES": ("globalPid pid name", [(1 << 48, 1, PROCESS)]),
    "ANALYSIS_FILE": ("id filename contentId globalPid", [(0, f"{HOME}/stdout.log", 1, 1 << 48)]),
    "DIAGNOSTIC_EVENT": ("timestamp source severity text globalPid", [(0, 1, 1, f"see {WINDOWS_HOME}", 1 << 48)]),
    "my_own_notes": ("note", [(f"ask {E_MAIL} about {SSH_KEY}",)]),
}  # fmt: skip
STRINGS = {900_001: OUTPUT, 900_002: f"{HOME}/stdout.log", 900_003: THREAD, 900_004: UNREFERENCED}
ROWS = (
    ("ProcessStreams", "globalPid filenameId contentId", (1 << 48, 900_002, 900_001)),
    ("ThreadNames", "nameId globalTid", (900_003, 1 << 48 | 4242)),
    ("NVTX_EVENTS", "start eventType text globalTid domainId", (1, 34, MARK, 1 << 48 | 4242, 0)),
)
# Where `scrub --check` finds what is planted, and what it says there.
LISTED = {
    *((table, "(all of the table)") for table in (*TABLES, "ProcessStreams") if table not in NEEDED),
    ("surroundings", "(users, hosts, folders and commands)"), ("nsys SQLite export", "(all that no answer needs)"),
}  # fmt: skip


def add_variables(report, **values):
    """Let a report say these environment variables."""
    assigned = [("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"') for name, value in values.items()]
    with closing(sqlite3.connect(report)) as connection:
        add(connection, "META_DATA_CAPTURE", "name value", assigned)
        connection.commit()


def plant(report):
    """Add private values to every table in which nsys keeps some, and leave others in freed pages."""
    with closing(sqlite3.connect(report)) as connection:
        for table, (columns, rows) in TABLES.items():
            add(connection, table, columns, rows)
        add(connection, "StringIds", "id value", STRINGS.items())
        for table, columns, row in ROWS:
            add(connection, table, columns, [row])
        for column, value in (("uuid", UUID), ("busLocation", PCI)):
            connection.execute(f"ALTER TABLE TARGET_INFO_GPU ADD COLUMN {column} TEXT")
            connection.execute(f"UPDATE TARGET_INFO_GPU SET {column} = ?", (value,))
        connection.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN jsonText TEXT")
        connection.execute("UPDATE NVTX_EVENTS SET jsonText = ? WHERE rowid = 5", (PAYLOAD,))
        connection.commit()
        delete_a_table_of(connection, TOKEN)
    return report


def add(connection, table, columns, rows):
    """Insert rows, into a new table where there is none."""
    names = columns.split()
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(names)})")
    marks = ", ".join("?" * len(names))
    connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)


def delete_a_table_of(connection, value):
    """Fill pages with a value, and free them."""
    add(connection, "deleted", "value", [(value,)] * 1000)
    connection.commit()
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("DROP TABLE deleted")
    connection.commit()
