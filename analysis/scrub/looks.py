"""The patterns of private values in any text: each kind, and how to find it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv6Address

from .makers import secrets_in

Span = tuple[int, int]
Finder = Callable[[str], list[Span]]

# One part of a path; inside one, there can be spaces.
_PART = r"[^\s/\\:;,'\"<>(){}\[\]|=\x00]++"
_INNER = rf"{_PART}(?: {_PART}){{0,3}}+"
_HOMES = r"(?i:home|users?|homes|u|people|staff|students?)\d*"
# Where people keep files, at the root of file systems.
_ROOTS = (
    rf"(?:{_HOMES}|(?i:p?scratch|storage|data|work|workspaces?|project|proj|projects?|mnt|media|opt|usr|tmp|var|etc|srv|nfs|"
    r"gpfs|lustre|beegfs|ceph|private|cluster|shared?|proc|run|export|efs|fsx|fs|content|kaggle|volumes?|net|afs|"
    r"vol|local|cache|dev|lib|ssd|nvme|raid|disk|root|sdf|global|common|autofs|group|groups|lab|labs)\d*)"
)
# Names that TensorRT and ONNX give to layers, such as `/layer.0/attention/MatMul`, look like paths but are not.
_WORD = (
    r"(?:model|transformer|encoder|decoder|layers?|blocks?|h|self_attn|attention|attn|mlp|ffn|embed(?:ding)?s?|"
    r"(?:layer|rms|batch|group)?_?norm|lm_head|head|conv|linear|fc|dense|pool(?:er)?|[qkvo]_proj|proj|bert|gpt|"
    r"backbone|neck|stem|features?|classifier|unet|vae|text_model|vision_model|down|up|mid|stage|resnets?|"
    r"self|output|intermediate|query|key|value|cross_attn)\d*"
)
_STRICT = rf"(?:{_WORD}|\d+)(?:[._]{_WORD}|[._]\d+)*"
_OPERATOR = (
    r"(?:Add|And|ArgMax|AveragePool|BatchNormalization|Cast|Clip|Concat|Constant(?:OfShape)?|Conv(?:Transpose)?|CumSum|"
    r"Div|Einsum|Elu|Equal|Erf|Exp|Expand|Flatten|Floor|Gather(?:ND|Elements)?|Gelu|Gemm|GlobalAveragePool|Greater|GRU|"
    r"Identity|If|InstanceNormalization|LayerNormalization|LeakyRelu|Less|Log|LogSoftmax|Loop|LSTM|MatMul|Max(?:Pool)?|"
    r"Min|Mod|Mul|Neg|NonZero|Not|OneHot|Or|Pad|Pow|PRelu|Range|Reciprocal|Reduce\w+|Relu|Reshape|Resize|Scatter\w*|"
    r"Shape|Sigmoid|Silu|Sin|Slice|Softmax|Softplus|Split|Sqrt|Squeeze|Sub|Tanh|Tile|TopK|Transpose|Unsqueeze|Where)"
    r"(?:_\d+)?(?:_output_\d+)?"
)
LAYER = re.compile(
    rf"/{_STRICT}/(?:{_STRICT}|[A-Z]\w*)(?:/[\w.]+)*(?![\w./-])"
    rf"|/(?!{_ROOTS}/)[A-Za-z_][\w.]*/(?:[A-Za-z_][\w.]*/)*{_OPERATOR}(?![\w./-])"
)
_SOURCES = (
    "py", "pyc", "pyx", "cu", "cuh", "cpp", "cc", "hpp", "so", "ipynb", "sh", "yaml", "yml", "toml", "json",
    "jsonl", "pt", "pth", "ckpt", "safetensors", "npz", "parquet", "sqlite", "log", "txt", "csv",
)  # fmt: skip
_PUBLIC_SOURCE = r"(?:torch|triton|aten|transformers|numpy|nvtx|threading|contextlib|runpy)"
_IS_SOURCE = "|".join(rf"(?<=\.{ending})" for ending in _SOURCES)
PATH = re.compile(
    rf"(?<![\w.])(?:/{_ROOTS}(?:/{_INNER}(?=/))*+/{_PART}(?:(?: {_PART}){{1,3}}(?:{_IS_SOURCE}))?/?|/root\b"
    rf"|~[\w.-]*+(?:/{_PART})++/?"
    rf"|(?<![)\]}}])/(?!/){_PART}(?:/{_PART})++/?"
    rf"|[A-Za-z]:[\\/]++(?:{_INNER}[\\/]++)*+(?:{_PART})?|\\\\{_PART}(?:\\++{_INNER})++)"
    rf"|(?<=lambda at )/?(?:{_PART}/)++{_PART}"
    rf"|(?<![\w./-])(?!{_PUBLIC_SOURCE}/)(?:[\w.-]++/)++[\w.-]++(?:{_IS_SOURCE})(?![\w.-])"
)
HOME = re.compile(
    rf"(?<![\w.])(?:/{_HOMES}/{_PART}(?: [A-Z]\w+){{0,2}}|/root\b"
    rf"|[A-Za-z]:[\\/]+(?i:users)[\\/]+{_PART}(?: [A-Z]\w+){{0,2}})"
)

_OWN_FORMS = (
    r"(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{40,}|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{20,}|dckr_pat_[\w-]{20,}|(?:sk|rk|pk|whsec)_(?:live|test|prod)_\w{10,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|sq0(?:csp|atp)-[\w-]{22,}|[0-9a-f]{32}-us\d{1,2}"
    r"|hooks\.slack\.com/\S+|eyJ[\w-]{10,400}\.eyJ[\w-]{10,}\.[\w-]{10,})"
)
_KEY_WORDS = r"[A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY = rf"-----BEGIN {_KEY_WORDS}[^-]{{0,8192}}(?:-----END {_KEY_WORDS})?"
_TOLD = (
    r"(?i:passw(?:or)?d|passwd|passphrase|pwd|secret|credentials?|cookie|session_?id"
    r"|(?:api|access|private|account|secret|auth|encryption|signing|ssh|license|shared)[_-]?key)"
)
_GIVEN = r"[\"'\]]?\s{0,3}(?::=|=>|[=:])\s{0,3}[\"']?"
_VALUE = r"[^\s\"',;\x00]"
SECRET = re.compile(
    rf"{_PRIVATE_KEY}|{_OWN_FORMS}"
    rf"|(?<![\w.-])[\w.-]{{0,60}}?{_TOLD}[\w.-]{{0,40}}{_GIVEN}(?!:){_VALUE}+"
    rf"|(?<![\w.-])[\w.-]{{0,60}}?(?:TOKEN|PAT|KEY)(?:_[A-Z0-9_]{{0,20}})?{_GIVEN}(?!\d+\b){_VALUE}+"
    rf"|(?<![\w.-])[\w.-]{{0,60}}?(?i:token(?!i)(?!s\b))[\w.-]{{0,40}}{_GIVEN}"
    rf"(?:(?={_VALUE}{{0,200}}[A-Za-z])(?={_VALUE}{{0,200}}\d){_VALUE}{{6,}}|(?={_VALUE}{{0,200}}[a-z])(?={_VALUE}{{0,200}}[A-Z]){_VALUE}{{8,}}|{_VALUE}{{16,}})"
    r"|\b(?i:Bearer|Basic|Token)\s{1,3}[A-Za-z0-9._~+/-]{10,}={0,2}"
    r"|(?<![\w-])(?:-u|--user)(?:=|\s{1,5})[^\s:]{0,100}:\S+"
)
SSH_KEY = re.compile(
    r"(?:ssh-(?:rsa|ed25519|dss)|sk-ssh-\S+|ecdsa-sha2-nistp\d{3})\s+AAAA[A-Za-z0-9+/=]{20,}|SHA256:[A-Za-z0-9+/]{43}"
)
URL = re.compile(r"(?i)(?<![a-z0-9])[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>\x00]+")
E_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,6}")
HOST = re.compile(
    r"(?i)(?<![\w.-])(?:[a-z0-9][\w-]{0,62}\.){1,6}(?:internal|local|localdomain|lan|corp|intra|intranet|private|cluster)(?![\w-])"
    r"|(?<![\w.-])(?:[a-z0-9][\w-]{0,62}\.){2,6}(?:com|org|net|edu|gov|mil)(?![\w-])"
    r"|(?<![\w.-])(?:[a-z0-9][\w-]{0,62}\.){1,6}(?:ac|co|edu|gov)\.[a-z]{2}(?![\w-])"
    r"|(?<![\w.-])ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?![\w-])"
)
_NOT_A_VERSION = r"(?<!version )(?<!cudnn )(?<!cudnn=)(?<!driver )(?<!cuda )(?<!torch )(?<!version=)(?<![vV])"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
ADDRESS = re.compile(
    rf"{_NOT_A_VERSION}(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?![\w]|\.\d)"
    r"|(?i:(?<![\w:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![\w:]))"
)
_MAYBE_IPV6 = re.compile(
    r"(?i)(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"
)
IDENTIFIER = re.compile(
    r"(?i)(?<![0-9a-f])(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9a-f])"
    r"|\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b"
)
# As the kernel hands an environment to a program.
ENVIRONMENT = re.compile(r"\x00[A-Za-z_][A-Za-z0-9_]{1,}=")


def by(pattern: re.Pattern[str]) -> Finder:
    """Return a function that finds a pattern."""
    return lambda text: [found.span() for found in pattern.finditer(text)]


def secrets(text: str) -> list[Span]:
    """Find tokens in their makers' formats, and what is assigned to something called a key, token or password."""
    return merged([*by(SECRET)(text), *secrets_in(text)])


def paths(text: str) -> list[Span]:
    """Find paths of files and folders, but not names of layers."""
    found = (found for pattern in (PATH, HOME) for found in pattern.finditer(text))
    return merged([one.span() for one in found if not LAYER.match(text, one.start())])


def addresses(text: str) -> list[Span]:
    """Find network addresses, except those of the local machine; C++ names contain colons too."""
    ipv6 = [found.span() for found in _MAYBE_IPV6.finditer(text) if _is_ipv6(found[0])]
    return merged([*by(ADDRESS)(text), *ipv6])


def _is_ipv6(text: str) -> bool:
    groups = [group for group in text.split(":") if group]
    try:
        address = IPv6Address(text)
    except ValueError:
        return False
    told = len(groups) >= 3 or (len(groups) == 2 and len(groups[0]) == 4)
    return told and any(map(str.isdigit, text)) and not address.is_loopback and not address.is_unspecified


def merged(spans: list[Span]) -> list[Span]:
    """Return spans in order, those that overlap as one."""
    return list(_merged(sorted(spans)))


def _merged(spans: list[Span]) -> Iterator[Span]:
    begin, end = -1, -1
    for start, stop in spans:
        if start >= end:
            if end > begin:
                yield begin, end
            begin, end = start, stop
        end = max(end, stop)
    if end > begin:
        yield begin, end


# What a private value in a name is replaced by, with a number that tells one value from another. Order matters: an
# address with a password in it is a secret, a path may hold an address.
LOOKS: Mapping[str, Finder] = {
    "secret": secrets,
    "key": by(SSH_KEY),
    "url": by(URL),
    "email": by(E_MAIL),
    "path": paths,
    "host": by(HOST),
    "address": addresses,
    "id": by(IDENTIFIER),
}
# In a raw page the byte before a text is any byte, a letter too.
RAW_SECRET = re.compile(f"{_PRIVATE_KEY}|{_OWN_FORMS}")
