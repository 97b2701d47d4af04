"""What secrets look like: the shapes of common credentials, and values behind a telling name. Pure.

It is a net, not a proof: a secret without shape or name passes. Every repetition has an upper bound and no two
neighbours match the same characters, so that no text, whoever wrote it, makes it slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable

OPEN = "[redacted:"
"""How a placeholder begins; nothing that begins like this is replaced again."""

_KINDS: tuple[tuple[str, str], ...] = (
    (
        "pem",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]{0,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
    ),
    ("age", r"\bAGE-SECRET-KEY-1[A-Z0-9]{50,70}"),
    ("model", r"\bsk-(?:ant|proj|or|svcacct|admin)?[-_]?[A-Za-z0-9_-]{16,400}"),
    ("payment", r"\b(?:sk|pk|rk|whsec)_[A-Za-z0-9_]{14,200}"),
    ("github", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{20,255})"),
    ("gitlab", r"\bgl(?:pat|ptt|rt|dt|soat|cbt|agent)-[A-Za-z0-9_-]{16,200}"),
    ("slack", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,250}|\bxapp-[A-Za-z0-9-]{10,250}"),
    ("hook", r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{10,200}"),
    ("aws", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    ("google", r"\bAIza[A-Za-z0-9_-]{30,60}|\bya29\.[A-Za-z0-9_-]{20,500}|\bGOCSPX-[A-Za-z0-9_-]{20,60}"),
    ("azure", r"(?<=AccountKey=)[A-Za-z0-9+/]{40,100}={0,2}|(?<=SharedAccessKey=)[A-Za-z0-9+/]{30,100}={0,2}|(?<=[?&]sig=)[A-Za-z0-9%]{30,120}"),
    ("hub", r"\bhf_[A-Za-z0-9]{20,100}"),
    ("registry", r"\bnpm_[A-Za-z0-9]{20,100}|\bpypi-[A-Za-z0-9_-]{20,400}|\bdckr_pat_[A-Za-z0-9_-]{20,100}"),
    ("cloud", r"\bdo[opr]_v1_[a-f0-9]{40,80}|\bSG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{30,60}|\bSK[a-f0-9]{32}\b|\bhvs\.[A-Za-z0-9_-]{20,200}"),
    ("bot", r"\b\d{8,10}:[A-Za-z0-9_-]{35}\b"),
    ("loopd", r"\blpd_[A-Za-z0-9]{1,32}_[A-Za-z0-9_-]{40,60}"),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,8000}(?:\.[A-Za-z0-9_-]{0,2000})?"),
)  # fmt: skip
_SHAPES = re.compile("|".join(f"(?P<{name}>{shape})" for name, shape in _KINDS))

_HEADER = re.compile(
    r"\b(?P<head>(?:bearer|basic|token)[ \t]{1,4})(?P<it>[A-Za-z0-9._~+/=-]{12,4000})", re.IGNORECASE
)
_COOKIE = re.compile(r"(?P<head>\b(?:set-)?cookie:[ \t]{0,4})(?P<it>[^\r\n\"']{4,4000})", re.IGNORECASE)
_URL = re.compile(
    r"(?P<head>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@\[\]]{0,200}:)(?P<it>[^\s/@]{1,500})(?=@)", re.IGNORECASE
)
_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token|access[_-]?token|"
    r"refresh[_-]?token|session[_-]?token|id[_-]?token|[_-]token(?!s)|private[_-]?key|encryption[_-]?key|credential)"
)
_NAMED = re.compile(
    rf"""(?P<head>{_NAMES}s?[A-Za-z0-9]{{0,20}}\\?["']?[ \t]{{0,4}}(?:=>|[:=])[ \t]{{0,4}}\\?["']?)(?P<it>[^\s"'&;,\\\[\]{{}}]{{3,2000}})""",
    re.IGNORECASE,
)
_FLAG = re.compile(
    r"(?P<head>(?<!\S)--?(?:password|passwd|token|secret|api-key|apikey|auth)[ =]\"?)(?P<it>[^\s\"'\[]{3,2000})",
    re.IGNORECASE,
)
# The words for kinds are none that a name could end with: a placeholder must never look like a name and a value.
_BEHIND: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("header", _HEADER),
    ("jar", _COOKIE),
    ("url", _URL),
    ("named", _NAMED),
    ("named", _FLAG),
)

_KEY = re.compile(
    r"(?:^|[_.-]|(?<=[a-z0-9]))(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"encryption[_-]?key|credentials?|secrets|passwords)$|^(?:authorization|proxy-authorization|cookie|set-cookie)$",
    re.IGNORECASE,
)
"""Names of fields whose whole value is a secret."""

LEAST_CHARS = 3

Stand = Callable[[str, str], str]
"""(kind, secret) → what stands in its place."""


def replaced(text: str, stand: Stand) -> str:
    """The text with each secret that is recognised replaced; doing it again changes nothing."""

    def shape(found: re.Match[str]) -> str:
        return stand(str(found.lastgroup), found[0])

    text = _SHAPES.sub(shape, text)
    for kind, pattern in _BEHIND:

        def behind(found: re.Match[str], kind: str = kind) -> str:
            return found[0] if found["it"].startswith(OPEN) else found["head"] + stand(kind, found["it"])

        text = pattern.sub(behind, text)
    return text


def is_telling(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    return len(name) <= 80 and _KEY.search(name) is not None


KINDS = (*(name for name, _ in _KINDS), "header", "jar", "url", "named", "custom")
"""All words that may stand in a placeholder."""
