"""How does one get to a place in the logs of a run: all logs as one, some ranks only, where the cause is, a byte?"""

from rich.text import Text
from textual import work

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.log_files import evidence_folder
from eagle3ops.screens.logs.place import LogPlace
from eagle3ops.screens.logs.reading import LogReading
from eagle3ops.screens.logs.source import Document, Matches, Which
from eagle3ops.screens.logs.text import Condition, labels, parse_part
from eagle3ops.words import human_bytes, plain

LABEL_WIDTH, NARROW_LABEL = 18, 12
"""Cells for the name of a line's log, from `WIDE_LABELS` columns on and below."""

WIDE_LABELS = 110


class LogPlaces(LogReading):
    """What is shown of a run's logs, and which line of it."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[str, int] = {}
        self._run_id = ""
        self._evidence = ""
        """Folder of evidence whose files are listed instead of the logs."""

    def _merged(self) -> Which:
        """All logs of the chosen ranks and roles as one."""
        return Which(self._part.logs(list(self._sizes)), merged=True)

    def _names(self) -> tuple[str, ...]:
        return self._document.which.logs if self._document is not None else ()

    def _part_condition(self) -> Condition | None:
        return self._part.condition(list(self._sizes))

    def _open(self, which: Which, place: LogPlace | None = None) -> None:
        """Show a log or several, at the end or at a place; filter and search go with it."""
        self._document = document = Document(self._host, which)
        self._filter = self._search = self._hit = self._origin = self._error = None
        self._told = ""
        folder = evidence_folder(which.logs[0]) if which.logs else ""
        if folder != self._evidence:
            self._evidence, self._sizes = folder, {}
            self._watch()
        self._listed(which)
        view = self._view
        view.border_title = Text(f"{plain(self._run_id)}  {plain(which.name)}")
        wide = self.size.width >= WIDE_LABELS
        view.labels = labels(which.logs, LABEL_WIDTH if wide else NARROW_LABEL) if which.merged else ()
        view.follow, view.found = place is None or place.offset is None, {}
        view.show(document, 0)
        self._first_look(document, place)

    def _leave_evidence(self) -> None:
        """Back to the logs; which one is opened, their list says."""
        self._evidence, self._sizes, self._document = "", {}, None
        self._watch()

    def _listed(self, which: Which) -> None:
        """Mark in the list what is shown."""
        raise NotImplementedError

    def _watch(self) -> object:
        """Look at the list of logs now, and from then on."""
        raise NotImplementedError

    async def _look(self) -> bool:
        """Take in what was added; true when something was."""
        raise NotImplementedError

    @work(exclusive=True, group="open", exit_on_error=False)
    async def _first_look(self, document: Document, place: LogPlace | None) -> None:
        try:
            await self._look()
            if place is not None and place.offset is not None and document is self._document:
                row = await document.line_at(place.log, place.offset)
                if document is self._document:
                    self._view.go(row, middle=True)
        except Eagle3opsError as error:
            self._say(error)
        if document is self._document:
            self._apply_filter()
            self._apply_search(jump=False)
            self._show_status()

    async def _here(self) -> LogPlace | None:
        """The place of the cursor; None at the end that is followed."""
        document, number = self._document, self._number()
        if document is None or self._view.follow or number is None or not document.counted:
            return None
        origin = await document.origin_of(number)
        return LogPlace(self._run_id, *origin) if origin is not None else None

    @work(exclusive=True, group="place", exit_on_error=False)
    async def action_merge(self) -> None:
        """All logs as one, in order of time; or the log of this line by itself. The line stays."""
        document = self._document
        if self._evidence:
            self._leave_evidence()
            return
        if document is None or (len(self._sizes) < 2 and not document.which.merged):
            self.notify("There is only one log.", severity="warning")
            return
        try:
            place = await self._here()
        except Eagle3opsError as error:
            self._say(error)
            return
        if not document.which.merged:
            self._open(self._merged(), place)
            return
        line = self._view.rows.get(self._view.cursor)
        source = line.source if line is not None and line.source is not None else 0
        self._open(Which.one(document.which.logs[source]), place)

    @work(exclusive=True, group="place", exit_on_error=False)
    async def action_cause(self) -> None:
        """To the line that says why the run failed.

        The host's op `log.cause` names it: log, byte, and how that was found. Whatever understands more than that op
        (`diagnose`, over all ranks) has only to answer in the same form to be asked here instead.
        """
        try:
            found = await self._host.call("log.cause")
        except Eagle3opsError as error:
            self._say(error)
            return
        log = found.get("log")
        if not isinstance(log, str) or not isinstance(found.get("offset"), int):
            self.notify("No log of this run says that anything went wrong.", severity="warning")
            return
        place = LogPlace(self._run_id, log, found["offset"])
        # What is filtered away could not be gone to.
        self._typed["filter"], self._level = "", ""
        document = self._document
        both = document is not None and document.which.merged and log in document.which.logs
        self._open(document.which if both and document is not None else Which.one(log), place)
        self._told = plain(found.get("how", ""))

    def _choose_part(self, typed: str) -> None:
        """Only some ranks or roles: of many logs those, and of one log the lines that name them."""
        part = parse_part(typed)
        if part is None:
            self.notify("Ranks are numbers such as 0,3-5; roles are parts of names of logs.", severity="warning")
            return
        self._typed["part"], self._part = typed, part
        if self._document is not None and not self._evidence and (part.roles or self._document.which.merged):
            self._open(self._merged())
        else:
            self._apply_filter()
            self._apply_search(jump=False)

    def _why_nothing(self) -> tuple[str, ...]:
        """What stands where there is no line to show."""
        document, words = self._document, self.no_run()
        if words:
            return words
        if document is None:
            return ("This run has no logs yet." if self._read_at is not None else "Asking for the logs ...",)
        if document.size == 0:
            row = self.runs.row
            still = " yet; it appears here when it is" if row is not None and row.status == "running" else ""
            others = "< and > go to the others." if any(self._sizes.values()) else "1 shows what the run itself tells."
            return (f"Nothing was written to {plain(document.which.name)}{still}.", "", others)
        if isinstance(self._view.rows, Matches) and self._scanning is None:
            return ("No line matches the filter.", "", "& changes it, e the level, # the ranks.")
        return ()

    def _left_out(self) -> str:
        """What of long logs is not merged, in words."""
        left = sum(self._document.left_out.values()) if self._document is not None else 0
        return f"merged without the first {human_bytes(left)} of long logs" if left else ""
