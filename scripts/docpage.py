"""Reads what a page of Ascend/pytorch's docs says of an API, in every form that such pages have had.

A: an HTML table, one row per API. B: a pipe table. C: the same, the name a link. D: the same, with hardware excepted in
the cell. E: a heading per API and one line that says it. F: a heading per API and a table of hardware. G: a heading per
API and a list of hardware. From E on, methods stand in quotes below their class.
"""

from __future__ import annotations

import enum
import html
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

import msgspec

SUPPORT = r"是否支持|(?:产品|硬件)?支持情况|(?:(?:hardware|product)\s+)?support(?:ed)?(?:\s+status|\s+or\s+not)?\??"
SUPPORT_HEAD = re.compile(SUPPORT, re.IGNORECASE)
NAME_HEAD = re.compile(r"(?:(?:PyTorch|原生)\s*)?(?:API|接口)\s*(?:名称|名|names?)?|名称|names?", re.IGNORECASE)
HARDWARE_HEAD = re.compile(
    r"(?:AI\s*)?(?:硬件|产品|芯片|hardware|products?|devices?|chips?)(?:\s*(?:型号|名称|name))?", re.IGNORECASE
)
LABEL = re.compile(rf"({SUPPORT})\s*[:：]\s*", re.IGNORECASE)
NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
KINDS = r"abstract|async|attribute|class|classmethod|dataclass|exception|function|method|property|staticmethod"
ENTRY = re.compile(rf"(?:(?:{KINDS})\s+)*({NAME})\s*(\(.*\))?", re.ASCII | re.DOTALL)
END = r"(?=$|[\s,.;:，。；：、（(）)])"
YES = re.compile(rf"(?:是|支持|[✔✓√☑✅]\ufe0f?|yes|y|supported|true){END}", re.IGNORECASE)
NO = re.compile(rf"(?:否|(?:暂)?不支持|[✘✗✖×❌]\ufe0f?|x|no|n|not\s+supported|unsupported|false){END}", re.IGNORECASE)
NOT_ON = re.compile(r"暂?不支持|not\s+(?:yet\s+)?supported|unsupported|except", re.IGNORECASE)
ONLY_ON = re.compile(r"仅支持|only", re.IGNORECASE)
ON = re.compile(r"^[\s,，、:：]*(?:(?:on|by|for|in)\s+)?", re.IGNORECASE)
TERM = re.compile(r"<term>([^<]*)</term>", re.IGNORECASE)
KNOWN_HARDWARE = re.compile(r"Atlas|Ascend|Kirin|NPU|产品|系列")
NOTHING = {"", "-", "–", "—", "/", "na", "n/a"}
BREAK, TAG = re.compile(r"<br\s*/?>", re.IGNORECASE), re.compile(r"</?[A-Za-z][^<>]*>")
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
HEADING, QUOTE, BULLET = (re.compile(text) for text in (r" {0,3}(#{1,6})\s+(.*)", r"\s*>\s*(.*)", r"\s*[-*+]\s+(.*)"))
FENCE = re.compile(r" {0,3}(```|~~~)")
DELIMITER = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?")
CELL_END = re.compile(r"(?<!\\)\|")
WORDS_CHARACTERS = 200


class Support(enum.Enum):
    """What the docs say of an API: ``exception`` is yes, but not on all hardware."""

    SUPPORTED = "supported"
    EXCEPTION = "exception"
    UNSUPPORTED = "unsupported"
    NO_STATEMENT = "no-statement"
    NO_ENTRY = "no-entry"
    UNKNOWN_FORM = "unknown-form"
    NO_FILE = "no-file"


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says of an API, in its own ``words``, and where; ``hardware`` is yes or no for each that is named."""

    support: Support
    hardware: dict[str, bool] = {}
    line: int | None = None
    words: str = ""


def read(text: str, names: Iterable[str]) -> dict[str, Statement]:
    """Return what a page says of each of ``names``; it may be any text."""
    lines = _lines(text)
    entries: dict[str, list[Statement]] = {}
    for name, statement in _Page(lines).entries():
        entries.setdefault(name, []).append(statement)
    return {name: _one(entries.get(name, []), name, lines) for name in names}


# Helpers


def _lines(text: str) -> list[str]:
    """Return the lines of a page without comments and code."""
    parts, rest = [], text
    while "<!--" in rest:
        before, _, rest = rest.partition("<!--")
        comment, end, rest = rest.partition("-->")
        parts.append(before + "\n" * len(re.findall(r"\r\n|\r|\n", comment)))
        if not end:
            break
    lines = re.split(r"\r\n|\r|\n", "".join([*parts, rest]))
    fence = ""
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if match and fence in ("", match[1]):
            fence = "" if fence else match[1]
            lines[number] = ""
        elif fence:
            lines[number] = ""
    return lines


def _one(statements: list[Statement], name: str, lines: list[str]) -> Statement:
    """Return what several entries of an API come to."""
    if not statements:
        mention = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", re.ASCII)
        for number, line in enumerate(lines, 1):
            if mention.search(line):
                return Statement(support=Support.UNKNOWN_FORM, line=number, words=_words(_plain(line)))
        return Statement(support=Support.NO_ENTRY)
    stating = [each for each in statements if each.support is not Support.NO_STATEMENT] or statements
    if any((each.support, each.hardware) != (stating[0].support, stating[0].hardware) for each in stating):
        words = "; ".join(f"line {each.line}: {each.support.value}" for each in stating)
        return Statement(support=Support.UNKNOWN_FORM, line=stating[0].line, words=words)
    return stating[0]


class _Page:
    """Goes through the lines of a page once, from block to block."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.owner = ""  # the class that methods belong to
        self.name = ""  # the API whose entry this is, and the line of its heading
        self.line = 0
        self.stated: list[Statement] = []

    def entries(self) -> Iterator[tuple[str, Statement]]:
        """Yield each API and what its entry says."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if "<table" in line.lower():
                yield from self._table(self._html_table())
            elif self.at + 1 < len(self.lines) and "|" in line and _is_delimiter(self.lines[self.at + 1]):
                yield from self._table(self._pipe_table())
            elif named := self._heading(line):
                yield from self._close()
                self.owner, self.name = named
                self.line = self.at = self.at + 1
            else:
                self.at += 1
                if self.name:
                    self._statement(line)
        yield from self._close()

    def _close(self) -> Iterator[tuple[str, Statement]]:
        if self.name:
            for statement in self.stated or [Statement(support=Support.NO_STATEMENT, line=self.line)]:
                yield self.name, statement
        self.name, self.stated = "", []

    def _heading(self, line: str) -> tuple[str, str] | None:
        """Return owner and name of the entry that starts in a line; both empty for a heading of something else."""
        heading, quote = HEADING.fullmatch(line), QUOTE.fullmatch(line)
        match = ENTRY.fullmatch(_plain(heading[2].rstrip("# ")) if heading else _plain(quote[1]) if quote else "")
        if match and "." in match[1]:
            return match[1], match[1]
        if match and self.owner and (match[2] or (quote and "<" in quote[1])):
            return self.owner, f"{self.owner}.{match[1]}"
        return ("", "") if heading else None

    def _statement(self, line: str) -> None:
        """Look whether a line of an entry says that it is supported, or starts what says so."""
        plain = _plain(line)
        label = LABEL.match(plain)
        if not label:
            return
        if plain[label.end() :].strip():
            # With the markup, which tells hardware from other words.
            rest = re.split("[:：]", line[max(0, line.find(label[1])) :], maxsplit=1)[-1]
            self.stated.append(_stated(rest, self.at))
            return
        number = self.at
        while number < len(self.lines) and not self.lines[number].strip():
            number += 1
        hardware: dict[str, str] = {}
        first = number
        while number < len(self.lines):
            bullet = BULLET.fullmatch(self.lines[number])
            if bullet:
                name, _, mark = _plain(bullet[1]).replace("：", ":").rpartition(":")
                hardware[_hardware(name or mark)] = mark.strip() if name else "?"
            elif self.lines[number].strip():
                break
            number += 1
        if hardware:
            self.stated.append(_per_hardware(hardware, first + 1))
            self.at = number

    def _table(self, rows: list[tuple[int, list[str]]]) -> Iterator[tuple[str, Statement]]:
        """Yield what a table says, and what it says of the entry that it stands in."""
        heads = [" ".join(_plain(cell).split()) for cell in rows[0][1]] if rows else []
        columns = [
            next((number for number, head in enumerate(heads) if pattern.fullmatch(head)), None)
            for pattern in (SUPPORT_HEAD, HARDWARE_HEAD, NAME_HEAD)
        ]
        support, hardware, name = columns
        if support is None:
            return
        if hardware is not None:
            if self.name:
                cells = [(_cell(row, hardware), _cell(row, support)) for _, row in rows[1:]]
                marks = {_hardware(_plain(which)): _plain(mark) for which, mark in cells if _plain(which)}
                self.stated.append(_per_hardware(marks, rows[0][0]))
            return
        for line, row in rows[1:]:
            if match := ENTRY.fullmatch(_plain(_cell(row, name or 0))):
                yield match[1], _stated(_cell(row, support), line)

    def _pipe_table(self) -> list[tuple[int, list[str]]]:
        rows = [(self.at + 1, _cells(self.lines[self.at]))]
        self.at += 2
        while self.at < len(self.lines) and "|" in self.lines[self.at]:
            rows.append((self.at + 1, _cells(self.lines[self.at])))
            self.at += 1
        return rows

    def _html_table(self) -> list[tuple[int, list[str]]]:
        start = self.at
        while self.at < len(self.lines) and "</table" not in self.lines[self.at].lower():
            self.at += 1
        self.at += 1
        parser = _HtmlTable(start)
        try:
            parser.feed("\n".join(self.lines[start : self.at]))
            parser.close()
        except AssertionError:
            # Of html.parser itself, at declarations that are none.
            return []
        return parser.rows


class _HtmlTable(HTMLParser):
    """Takes the rows of a table apart, each cell with the markup in it."""

    def __init__(self, above: int) -> None:
        super().__init__()
        self.above = above
        self.rows: list[tuple[int, list[str]]] = []
        self.spans: dict[int, tuple[int, str]] = {}  # rows that a cell reaches into yet, by its column
        self.reaching: dict[int, str] = {}  # such cells that this row has not come to
        self.is_in_cell = False
        self.reach = 1

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append((self.above + self.getpos()[0], []))
            self.is_in_cell = False
            self.reaching = {column: text for column, (left, text) in self.spans.items() if left > 0}
            self.spans = {column: (left - 1, text) for column, (left, text) in self.spans.items()}
        elif tag in ("td", "th") and self.rows:
            row = self._filled()
            span = dict(attrs).get("rowspan") or "1"
            self.reach = int(span) if re.fullmatch("[1-9][0-9]{,2}", span) else 1
            row.append("")
            self.is_in_cell = True
        else:
            self._add(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.is_in_cell:
            self.is_in_cell = False
            row = self.rows[-1][1]
            self.spans[len(row) - 1] = (self.reach - 1, row[-1])
        elif tag == "tr" and self.rows:
            self._filled()
        else:
            self._add(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        if self.is_in_cell:
            self.rows[-1][1][-1] += text

    def _filled(self) -> list[str]:
        """Return this row up to where the next cell stands."""
        row = self.rows[-1][1]
        while len(row) in self.reaching:
            row.append(self.reaching.pop(len(row)))
        return row


def _stated(raw: str, line: int) -> Statement:
    """Return what a cell or line says in words: yes, no, or yes but not on some hardware."""
    plain = _plain(raw)
    yes, no = YES.match(plain), NO.match(plain)
    support, hardware = Support.UNKNOWN_FORM, dict[str, bool]()
    if plain.lower() in NOTHING:
        support = Support.NO_STATEMENT
    elif yes:
        support = Support.SUPPORTED
        for pattern, is_on in ((NOT_ON, False), (ONLY_ON, True)):
            excepted = pattern.search(raw)
            if excepted and support is Support.SUPPORTED:
                support, hardware = Support.EXCEPTION, dict.fromkeys(_named(raw[excepted.end() :]), is_on)
    elif no and not re.search(r"(?<!不)支持", plain[no.end() :]):
        support = Support.UNSUPPORTED
    return Statement(support=support, hardware=hardware, line=line, words=_words(plain))


def _per_hardware(marks: dict[str, str], line: int) -> Statement:
    """Return what yes and no for each hardware come to; a blank one says nothing of that hardware."""
    hardware: dict[str, bool] = {}
    unknown = []
    for name, mark in marks.items():
        if YES.fullmatch(mark) or NO.fullmatch(mark):
            hardware[name] = YES.fullmatch(mark) is not None
        elif mark.lower() not in NOTHING:
            unknown.append(f"{name}: {mark}")
    if unknown:
        support = Support.UNKNOWN_FORM
    elif not hardware:
        support = Support.NO_STATEMENT
    elif all(hardware.values()):
        support = Support.SUPPORTED
    else:
        support = Support.EXCEPTION if any(hardware.values()) else Support.UNSUPPORTED
    return Statement(support=support, hardware=hardware, line=line, words=_words("; ".join(unknown)))


def _named(raw: str) -> list[str]:
    """Return the hardware that is named in the rest of a statement."""
    others = re.split("[、,，]", ON.sub("", _plain(raw)).strip(" .。;；\n"))
    names = TERM.findall(raw) or filter(KNOWN_HARDWARE.search, others)
    return [name for each in names if (name := _hardware(_plain(each)))]


def _hardware(name: str) -> str:
    """Return ``Atlas A2 训练系列产品`` as ``Atlas A2训练系列产品``: the space is now there, now not."""
    return re.sub(r"(?<=[^\x00-\x7f]) | (?=[^\x00-\x7f])", "", " ".join(name.split()))


def _plain(markdown: str) -> str:
    """Return text without its markup; a break is a new line."""
    text = TAG.sub("", BREAK.sub("\n", LINK.sub(r"\1", markdown)))
    text = re.sub(r"_`([^`]*)`_", r"\1", html.unescape(text))
    return re.sub(r"[*`\u200b]|\\(?=[_*|<>])", "", text).replace("\xa0", " ").strip()


def _words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WORDS_CHARACTERS else f"{line[: WORDS_CHARACTERS - 1]}…"


def _is_delimiter(line: str) -> bool:
    return DELIMITER.fullmatch(line.strip()) is not None


def _cells(line: str) -> list[str]:
    cells = CELL_END.split(line.strip())
    return cells[1 if not cells[0].strip() else 0 : -1 if len(cells) > 1 and not cells[-1].strip() else None]


def _cell(row: list[str], number: int) -> str:
    return row[number] if number < len(row) else ""
