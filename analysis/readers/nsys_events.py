"""Constants of nsys's event tables."""

# Stands for the end of a range that was never closed; no event has this time.
NEVER_CLOSED = -(2**63)

# NVTX event types: push/pop and start/end ranges (70 and 71 where they carry an extended payload), marks, and the
# names of domains. Seen in exports of 2020 to 2026.
PUSH_POP_TYPES, START_END_TYPES = (59, 70), (60, 71)
MARK_TYPE, DOMAIN_TYPE = 34, 75
