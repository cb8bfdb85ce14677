"""Secrets of many makers, names of users, hosts and homes, and names of ranges that hold them.

`secrets()` are (secret, name that holds it); `PEOPLE` say how a report knows a name, and how its ranges use it.
"""

import base64
import random
import string
from dataclasses import dataclass

COUNT, SEED = 2_600, 20261122
LETTERS, HEX = string.ascii_letters + string.digits, "0123456789abcdef"

# Prefix, letters, how many, and suffix of tokens as their makers give them.
FORMS = (
    ("sk_live_", LETTERS, 24, ""), ("rk_live_", LETTERS, 24, ""), ("hf_", string.ascii_letters, 34, ""),
    ("ghp_", LETTERS, 36, ""), ("gho_", LETTERS, 36, ""), ("glpat-", LETTERS, 20, ""), ("xoxb-", LETTERS, 40, ""),
    ("AKIA", string.ascii_uppercase + "234567", 16, ""), ("npm_", LETTERS, 36, ""), ("nvapi-", LETTERS, 60, ""),
    ("https://hooks.slack.com/services/T0ABCDEFG/B0ABCDEFG/", LETTERS, 24, ""),
    ("SG.ngeVfQFYQlKU0ufo8x5d1A.", LETTERS, 43, ""), ("dckr_pat_", LETTERS, 27, ""), ("r8_", LETTERS, 37, ""),
    ("", HEX, 32, "-us12"), ("sk-proj-", LETTERS, 48, ""), ("AIza", LETTERS, 35, ""), ("pypi-", LETTERS, 60, ""),
    ("", HEX, 40, ""), ("", string.digits, 12, ""), ("", LETTERS, 10, ""),
)  # fmt: skip
# Assignments and headers that give any text away.
GIVEN = (
    "password={}", "passwd: {}", "DB_PASSWORD={}", "PGPASSWORD={}", "MY_SECRET={}", "api_key={}", "apikey: '{}'",
    "HF_TOKEN={}", "--api-key {}", "GITHUBTOKEN={}", "Authorization: Bearer {}", "postgres://me:{}@db/x",
    "--password={}", "login(password='{}')", '{{"client_secret": "{}"}}', "secret_key={}", "aws_session_token={}",
)  # fmt: skip
AROUND = (
    "{}",
    "load {}",
    "{} now",
    "({})",
    "[{}]",
    "<{}>",
    "a, {}; b",
    "step {}/3",
    "f(x={})",
    "é{} ",
    "layer 3 > {}",
)


def secrets(count=COUNT):
    """Return so many pairs of a secret and a name that holds it; the same ones every time."""
    chance, found = random.Random(SEED), {}
    while len(found) < count:
        prefix, letters, length, suffix = chance.choice(FORMS)
        drawn = "".join(chance.choices(letters, k=length))
        token = f"{prefix}{drawn}{suffix}"
        given = chance.random() < 0.5
        secret = drawn[:14] if given else token
        inside = chance.choice(GIVEN).format(secret) if given else token
        found[secret] = chance.choice(AROUND).format(inside)
    return list(found.items())


@dataclass(frozen=True)
class Person:
    """A private word: where the report says it (an environment variable), and names of ranges that repeat it."""

    word: str
    variable: str
    value: str
    names: tuple[str, ...]


def _user(word, variable="USER"):
    used = (f"{word}_model", f"run by {word}", f"[{word}]", f"/pscratch/sd/{word[0]}/{word}/x", f"~{word}/run.py")
    joined = (f"{word}Model", f"v2{word}3", f"user={word}", f"//home//{word}", f"%2Fhome%2F{word}%2Fx")
    return Person(word, variable, word, (*used, *joined, f"{word}@box", f"{word.upper()}:main", f"/x%2F{word}/y"))


def _host(word, value, variable="HOSTNAME"):
    return Person(word, variable, value, (f"allreduce on {word}", f"{value}:29500", f"rank0@{word}", f"{word}-0"))


def _home(word, value, variable="HOME"):
    inside = (f"open {value}/data/file.bin", f"lambda at {value}/model.py:3", f"import({value}/My Project/a.py)")
    return Person(word, variable, value, (value, *inside))


PEOPLE = (
    *map(_user, ("jdoe", "zoe", "kwu", "anqi", "bjork", "ann-marie", "j.doe", "x0r", "mueller", "o_neil", "q7w")),
    _user("wandbuser", "WANDB_ENTITY"), _user("slurmer", "SLURM_JOB_USER"), _user("sudoer", "SUDO_USER"),
    # Names that are words of models, too.
    _user("max"), _user("norm"), _user("will"), _user("gemma"), _user("xavier"),
    _host("gpu-node-0417", "gpu-node-0417.cluster.example.org"), _host("zeus", "zeus.lab.example.edu"),
    _host("nid001234", "nid001234"), _host("dgx7", "dgx7.internal"), _host("acme", "db.internal.acme.com"),
    _host("ip-10-3-4-5", "ip-10-3-4-5.ec2.internal"), _host("node17", "node17"), _host("maxwell", "maxwell"),
    _host("kraken", "kraken", "SLURM_SUBMIT_HOST"), _host("holygpu8a", "holygpu8a.rc.example.edu"),
    _host("atl1-1-01", "atl1-1-01.pace.example.edu", "SLURMD_NODENAME"), _host("zbox", "zbox.lan"),
    _host("trainer-xkcd", "trainer-xkcd", "POD_NAME"), _host("login.acme.dev", "login.acme.dev"),
    _host("fe80::1ff:fe23:4567:890a", "fe80::1ff:fe23:4567:890a"),
    _host("2001:db8:85a3::8a2e:370:7334", "2001:db8:85a3::8a2e:370:7334"), _host("192.168.7.21", "192.168.7.21"),
    _home("alice1", "/users/alice1"), _home("bobby", "/pscratch/sd/b/bobby"), _home("carol", "/storage/carol"),
    _home("davey", "/data1/davey"), _home("erin9", "/home/erin9"), _home("frank", "/u/frank"),
    _home("grace", "/lustre/users2/grace"), _home("heidi", "/gpfs/alpine/heidi"), _home("ivan7", "/Users/ivan7"),
    _home("judy", "C:\\Users\\judy"), _home("mallory", "/export/home/mallory"), _home("niaj", "/mnt/niaj"),
    _home("olivia", "/cluster/olivia"),
)  # fmt: skip


def forms(word):
    """Return a word's bytes as a file may hold them; too short a word is in any file in base64."""
    raw = word.encode()
    texts = [raw, word.encode("utf-16-le"), word.encode("utf-16-be")]
    return texts + [_in_base64(raw, at) for at in range(3) if len(raw) >= 6]


def _in_base64(raw, at):
    """Return the letters of base64 that bytes alone decide, where so many others stand before them."""
    encoded = base64.b64encode(b"." * at + raw)
    return encoded[-(-8 * at // 6) : 8 * (at + len(raw)) // 6]


def found_in(words, content):
    """Return which of the words a file's bytes hold, in any form and case."""
    lowered = content.lower()
    return [w for w in words if w.lower().encode() in lowered or any(form in content for form in forms(w))]
