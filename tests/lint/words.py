"""Find phrases that plain English does not need, and docstrings that are clauses: `words.py [FILE ...]`.

Prints `file:line: phrase: say ...` for each and exits with 1 if there is one. A line with `words: ok` in a comment is
skipped: the name of another project's API, or a quotation.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".h", ".md", ".toml", ".yml", ".sh"}
FOLDERS = ("src", "tests", "docs", "examples", "bench", ".github", "README.md", "Makefile", "setup.py")

PHRASES = {
    r"\bnobody\b": "no client, no thread, nothing",
    r"\b[Ww]hoever\b": "a noun: the client that, the caller that",
    r"\b(?:tells?|told)\b": "report, log, return, notify, say",  # words: ok
    r"(?-i:\bthat is none\b|\bthat are none\b)": "is not a ...",
    r"(?<!there )\b(?:is|are) no (?!longer|more|later|less|matter|such|other|need|good|one\b)[a-z]": "is not a ...",
    r"\bcomes? twice\b": "duplicate",
    r"\bstands? in\b|\bstood in\b": "is in",
    r"\bl(?:ies|ay) in\b": "is in",
    r"\bis gone\b|\bare gone\b|\bwas gone\b": "is closed, deleted, expired",
    r"\bin vain\b": "without result; say what was expected",
    r"\b(?:taken|takes?|took) down\b": "recorded, stopped",
    r"\bso far as\b": "as far as, if",
    r"\bof its own\b|\bof their own\b": "its own, their own",
    r"\bnative lane\b|\bthe lane\b": "the native handlers",
    r"\bdry spells?\b": "depletion",
    r"\bparked?\b": "delayed",
    r"\bheld back\b|\bslowed down\b": "throttled",
    r"\b(?:an|the|each|no|every) answer\b": "response",
    r"\bthe run of\b": "the request batch of",
}
RULES = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in PHRASES.items()]
# One search for all phrases, tried only where a word begins, takes a tenth of the time
ANY = re.compile(rf"\b(?=\w)(?:{'|'.join(PHRASES)})", re.IGNORECASE)

# A docstring begins with an imperative verb or a noun phrase in src, and at least not with a clause elsewhere.
CLAUSE = re.compile(
    r'^[ \t]*"""[ \t]*((?:what|whatever|who|whom|whose|where|when|why|how|which|whether'
    r"|as|by|for|of|under|nothing|nobody)\b)",  # words: ok
    re.IGNORECASE | re.MULTILINE,
)
QUESTION = re.compile(
    r'^[ \t]*"""[ \t]*((?:what|whatever|who|whom|whose|where|why|how|which|whether|of)\b)',
    re.IGNORECASE | re.MULTILINE,
)
CODE = {".py", ".pyx", ".pxd", ".pyi"}


def files() -> list[Path]:
    """Return the tracked files of the folders above, without generated tables."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in listed if name]
    return [p for p in paths if (p.suffix in SUFFIXES or p.name == "Makefile") and "messages" not in p.parts]


def findings(path: Path) -> list[str]:
    """Return one line of text for each phrase of a file."""
    text = path.read_text(encoding="utf-8")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    found = []
    for match in ANY.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
        if "words: ok" not in line:
            advice = next(advice for rule, advice in RULES if rule.fullmatch(match[0]))
            found.append(f"{shown}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}: say {advice}")
    if path.suffix in CODE:
        for match in (CLAUSE if path.is_relative_to(ROOT / "src") else QUESTION).finditer(text):
            number = text.count("\n", 0, match.start(1)) + 1
            found.append(f"{shown}:{number}: docstring begins with {match[1]!r}: say what it returns or is")
    return found


def main(names: list[str]) -> int:
    """Search the named files, or all of the project's files, and return 1 if a phrase was found."""
    found = [
        line for path in ([Path(n).resolve() for n in names] or files()) if path.is_file() for line in findings(path)
    ]
    print("\n".join(found) if found else "no phrase to rewrite")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
