"""How private values look, wherever they stand: what --check counts, and what is cut out of names."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Folders at the root of file systems; names of ranges such as TensorRT's `/layer.0/attention/MatMul` are no paths.
_ROOTS = (
    "home|Users|root|mnt|media|opt|usr|tmp|var|etc|srv|nfs|gpfs|lustre|scratch|private|workspace|work|cluster|shared|"
    "proc|run|data|projects?|export|efs|fsx|content|kaggle|Volumes"
)
_PART = r"[^\s/\\:;,'\"<>(){}\[\]|=\x00]+"

_KNOWN_FORM = (
    r"(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{40,}|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{20,}|dckr_pat_[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,})"
)
_PRIVATE_KEY = r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,8192}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
SECRET = re.compile(
    rf"{_PRIVATE_KEY}|\b{_KNOWN_FORM}"
    r"|(?i:(?<![a-z])(?:(?:api|access|private|account|secret)_?key|secret|token|passw(?:or)?d|passphrase|credentials?)"
    r"(?:_\w{0,20})?[\"']?\s{0,3}[=:]\s{0,3}[\"']?"
    r"(?=[^\s\"',;\x00]{0,200}[A-Za-z])(?=[^\s\"',;\x00]{0,200}\d)[^\s\"',;\x00]{8,})"
    r"|\b(?:Bearer|Basic)\s{1,3}[A-Za-z0-9._~+/-]{16,}={0,2}"
    r"|\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,100}:[^\s/@]{1,200}@"
)
# In a raw page the byte before a text is any byte, a letter too.
RAW_SECRET = re.compile(f"{_PRIVATE_KEY}|{_KNOWN_FORM}")
SSH_KEY = re.compile(
    r"\b(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-nistp\d{3})\s+AAAA[A-Za-z0-9+/=]{20,}|\bSHA256:[A-Za-z0-9+/]{43}"
)
E_MAIL = re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.[A-Za-z]{2,24}\b")
HOME = re.compile(rf"(?<![\w.])(?:/home/{_PART}|/Users/{_PART}|/root\b|[A-Za-z]:\\+Users\\+{_PART})")
PATH = re.compile(
    rf"(?<![\w.])(?:/(?:{_ROOTS})(?:/{_PART})+/?|/root\b|[A-Za-z]:\\+(?:{_PART}\\+)*{_PART}|\\\\{_PART}(?:\\+{_PART})+)"
    rf"|(?<=lambda at )/?(?:{_PART}/)+{_PART}"
)
ADDRESS = re.compile(
    r"(?<![\w.=-])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\d)"
    r"|(?i:(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])|\bfe80::[0-9a-f:]{2,}|"
    r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:]))"
)
IDENTIFIER = re.compile(
    r"(?i)\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b"
)

# As the kernel hands an environment to a program.
ENVIRONMENT = re.compile(r"\x00[A-Za-z_][A-Za-z0-9_]{1,}=")

# What a private value in a name is replaced by, with a number that tells one value from another. Order matters: a
# path may hold an address, an assignment of a token anything.
REPLACED: Mapping[str, re.Pattern[str]] = {
    "secret": SECRET,
    "key": SSH_KEY,
    "email": E_MAIL,
    "path": PATH,
    "address": ADDRESS,
    "id": IDENTIFIER,
}
