"""Tests that can fail: one operator of the code is flipped, and some test must notice.

``python -m benchmarks.mutants --number 100 --seed 0 [--only 'zoo/data/*' ...] [--timeout 120]``
draws operators of ``zoo/`` and ``guides/`` at random, all with the same probability. Each of them
is a mutant: ``+`` becomes ``-``, ``*`` becomes ``/``, ``<`` becomes ``<=``, ``>`` becomes ``>=``,
``==`` becomes ``!=``, and the other way round. Left out are ``__init__`` files, annotations, code
under ``if TYPE_CHECKING`` and ``if __name__ == "__main__"``, and text: f-strings, concatenated
strings and what a ``raise`` statement computes.

The tests that should notice are found by name, not by running everything:

1. the test file whose path mirrors the module: ``tests/unit/data/test_idx.py`` for
   ``zoo/data/idx.py``;
2. the other files in ``tests/unit``, ``tests/contract`` and ``tests/statistical`` that mention the
   dotted name of the module or import a name that a package takes from it;
3. for a module that none of these mention, the files that mention a module which imports it, or
   else the unit tests of its room: ``tests/unit/priors`` for ``zoo/priors/horseshoe.py``;
4. for ``guides/<method>.py`` and ``zoo/models/<method>.py``, the contract tests of the method.

They run in this order in one process, without those marked as slow, until the first failure. In a
survivor's row the tests that passed are listed, so that a survivor means: *these tests* cannot see
it. A failure counts only if the test passes without the mutant. A mutant that runs out of time is
``timed out``, and counts as caught, only if the tests without it need less than half of that time;
otherwise it is ``undecided``.

Rows are appended to ``benchmarks/results/mutants.csv`` one by one. ``--resume`` leaves out the
mutants of the same seed that are there already. The column ``outcome`` keeps the first run. Once
there are tests for the survivors, ``--retest`` runs those of the seed that were not caught again
and writes the second outcome to ``retested`` and the test that noticed to ``failed``. Only the
first outcomes estimate how many other mutants the tests would catch. The column ``note`` is filled
in by hand: a survivor whose note starts with ``equivalent`` behaves like the original, for the
reason given there, and is not counted. Rows of seed 0 have no first outcome: they were replaced
when a test was added.
"""

import argparse
import ast
import csv
import fnmatch
import io
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path

import pandas as pd
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.csv"
COPIED = ("zoo", "guides", "tests", "benchmarks", "docs", "setup.cfg", "pyproject.toml")
COLUMNS = ["file", "line", "column", "before", "after", "outcome", "failed", "tests", "seconds"]
COLUMNS += ["seed", "date", "note", "retested"]
PAIRS = [("+", "-"), ("*", "/"), ("<", "<="), (">", ">="), ("==", "!="), ("+=", "-="), ("*=", "/=")]
FLIPPED = dict(PAIRS) | {after: before for before, after in PAIRS}
#: A mutant may ask for any amount of memory.
MEMORY = 12 * 2**30
NO_TESTS = 5
CAUGHT = ["caught", "timed out"]


@dataclass(frozen=True, order=True)
class Site:
    """An operator in a file; the column counts characters from zero."""

    file: str
    line: int
    column: int
    before: str

    @property
    def after(self) -> str:
        """What the operator becomes."""
        return FLIPPED[self.before]

    def mutated(self, source: str) -> str:
        """Return the source with this operator flipped."""
        lines = source.splitlines(keepends=True)
        text, end = lines[self.line - 1], self.column + len(self.before)
        assert text[self.column : end] == self.before, f"{self} is not where it was"
        lines[self.line - 1] = text[: self.column] + self.after + text[end:]
        return "".join(lines)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _never_runs(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")


def _judged(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is below it, without annotations, text and code that never runs."""
    if isinstance(node, ast.JoinedStr | ast.Raise):
        return
    if isinstance(node, ast.BinOp) and (_is_text(node.left) or _is_text(node.right)):
        return
    if isinstance(node, ast.If) and _never_runs(node.test):
        for other in node.orelse:
            yield from _judged(other)
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _judged(child)


def _gaps(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the pairs of expressions between which an operator stands."""
    if isinstance(node, ast.BinOp):
        yield node.left, node.right
    elif isinstance(node, ast.AugAssign):
        yield node.target, node.value
    elif isinstance(node, ast.Compare):
        yield from zip([node.left, *node.comparators], node.comparators, strict=False)


def sites(file: str, source: str) -> list[Site]:
    """Return the operators of a file that can be flipped."""
    lines = source.splitlines()

    def place(line: int, byte: int) -> tuple[int, int]:
        return line, len(lines[line - 1].encode()[:byte].decode())

    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.OP and token.string in FLIPPED
    ]
    found = []
    for node in _judged(ast.parse(source)):
        for left, right in _gaps(node):
            assert left.end_lineno is not None
            assert left.end_col_offset is not None
            start = place(left.end_lineno, left.end_col_offset)
            end = place(right.lineno, right.col_offset)
            found += [
                Site(file, *token.start, token.string)
                for token in tokens
                if start <= token.start and token.end <= end
            ]
    return sorted(found)


def all_sites(root: Path, only: list[str]) -> list[Site]:
    """Return the operators of the files whose path matches one of the patterns."""
    found = []
    for package in ("guides", "zoo"):
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if path.name != "__init__.py" and any(fnmatch.fnmatch(file, p) for p in only):
                found += sites(file, path.read_text())
    return found


def dotted(file: str) -> str:
    """Return the name under which a file is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(source: str) -> set[str]:
    """Return what a file imports: modules, and names as if they were modules."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


class Selection:
    """The tests of each module, by the rules above.

    Parameters
    ----------
    root
        Directory that holds ``zoo``, ``guides`` and ``tests``.
    """

    def __init__(self, root: Path) -> None:
        self.texts = {
            path.relative_to(root).as_posix(): path.read_text()
            for room in ("unit", "contract", "statistical")
            for path in sorted((root / "tests" / room).rglob("test_*.py"))
        }
        self.imports = {test: imported(text) for test, text in self.texts.items()}
        modules = {
            path.relative_to(root).as_posix(): imported(path.read_text())
            for package in ("guides", "zoo")
            for path in sorted((root / package).rglob("*.py"))
        }
        self.modules = {file: names for file, names in modules.items() if "__init__" not in file}
        self.packages = {dotted(file): modules[file] for file in modules.keys() - self.modules}

    def _aliases(self, module: str) -> set[str]:
        """Return the names under which packages hand on what a module defines."""
        return {
            f"{package}.{name.removeprefix(module + '.')}"
            for package, names in self.packages.items()
            for name in names
            if name.startswith(module + ".")
        }

    def _mentioning(self, module: str) -> list[str]:
        mention, names = re.compile(rf"\b{re.escape(module)}\b"), {module} | self._aliases(module)
        return [
            test
            for test, text in self.texts.items()
            if names & self.imports[test] or mention.search(text)
        ]

    def of(self, file: str) -> list[str]:
        """Return the test files of a module, the most specific first."""
        module, path = dotted(file), Path(file.removeprefix("zoo/"))
        mirror = f"tests/unit/{path.with_name('test_' + path.name).as_posix()}"
        found = {mirror} & self.texts.keys() | set(self._mentioning(module))
        if not found:
            users = [dotted(user) for user, names in self.modules.items() if module in names]
            found = {test for user in users for test in self._mentioning(user)}
        if not found:
            start = f"tests/unit/{path.parts[0]}/"
            found = {test for test in self.texts if test.startswith(start)}
        room = f"tests/unit/{path.parent.as_posix()}/"
        return sorted(
            found, key=lambda test: (test != mirror, room not in test, "/unit/" not in test, test)
        )


def method_of(file: str) -> str | None:
    """Return the method that a file belongs to."""
    *room, name = file.removesuffix(".py").split("/")
    return name if room in (["guides"], ["zoo", "models"]) else None


@dataclass(frozen=True)
class Run:
    """How a run of tests ended: the code of pytest, none if it was stopped."""

    code: int | None
    failed: str
    seconds: float


def run_tests(root: Path, arguments: list[str], timeout: float) -> Run:
    """Run tests in a process of its own, and stop it with all its children in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", *arguments]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    output, code = "", None
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?|\S+)(?: - .*)?$", output, re.MULTILINE)
    return Run(code, failures[0] if failures else "", time.perf_counter() - start)


@dataclass
class Trial:
    """A copy of the code in which one operator after the other is flipped.

    Parameters
    ----------
    root
        Directory of the copy.
    timeout
        Seconds that the tests of a mutant may take.
    """

    root: Path
    timeout: float
    selection: Selection = field(init=False)

    def __post_init__(self) -> None:
        self.selection = Selection(self.root)
        self.clean_run = cache(self._clean_run)

    def _clean_run(self, tests: tuple[str, ...]) -> Run:
        return run_tests(self.root, list(tests), self.timeout)

    def _tests(self, file: str) -> list[list[str]]:
        """Return the arguments of the calls of pytest, one after the other."""
        calls = [self.selection.of(file)]
        if method := method_of(file):
            calls.append(["tests/contract", "-k", method])
        return [call for call in calls if call]

    def _write(self, file: str, source: str) -> None:
        path = self.root / file
        path.write_text(source)
        # Byte code is looked up by size and second, and a mutant often has both of its predecessor.
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()

    def _run(self, file: str) -> tuple[Run, list[str]]:
        """Run the tests of a file until one fails, and return the call that ended it."""
        left, run, call = self.timeout, Run(NO_TESTS, "", 0.0), list[str]()
        for call in self._tests(file):
            run = run_tests(self.root, call, left)
            left -= run.seconds
            if run.code not in (0, NO_TESTS):
                break
        return Run(run.code, run.failed, self.timeout - left), call

    def judge(self, site: Site) -> dict[str, object]:
        """Return the outcome of one mutant."""
        source = (self.root / site.file).read_text()
        self._write(site.file, site.mutated(source))
        try:
            run, call = self._run(site.file)
        finally:
            self._write(site.file, source)
        return {
            "file": site.file,
            "line": site.line,
            "column": site.column,
            "before": site.before,
            "after": site.after,
            "outcome": self._outcome(run, call),
            "failed": run.failed,
            "tests": " ".join(argument for call in self._tests(site.file) for argument in call),
            "seconds": round(run.seconds, 1),
        }

    def _outcome(self, run: Run, call: list[str]) -> str:
        if run.code in (0, NO_TESTS):
            return "survived"
        if run.code is None:
            clean = self.clean_run(tuple(call))
            fast = clean.code in (0, NO_TESTS) and clean.seconds < self.timeout / 2
            return "timed out" if fast else "undecided"
        # A mutant may break what is imported before any test has a name.
        by_name = "::" in run.failed
        clean = self.clean_run((run.failed,) if by_name else tuple(call))
        return "caught" if clean.code == 0 else "undecided"


def _rate(outcomes: "pd.Series[str]") -> str:
    decided = outcomes[outcomes != "undecided"]
    caught = int(decided.isin(CAUGHT).sum())
    share = f" ({100 * caught / len(decided):.0f} %)" if len(decided) else ""
    return f"{caught} of {len(decided)}{share}"


def summary(table: pd.DataFrame) -> str:
    """Count outcomes before and after tests were added, and list the survivors that are left."""
    equivalent = table.note.str.startswith("equivalent")
    last = table.retested.where(table.retested != "", table.outcome)
    counts = ", ".join(f"{n} {outcome}" for outcome, n in Counter(table.outcome).most_common())
    survivors = [
        f"  {row.file}:{row.line} {row.before} -> {row.after}"
        for row in table[~equivalent & (last == "survived")].itertuples()
    ]
    return "\n".join(
        [
            f"{len(table)} mutants: {counts}, {int(equivalent.sum())} of them equivalent.",
            f"Caught {_rate(table.outcome[~equivalent])} in the first run.",
            f"Caught {_rate(last[~equivalent])} after tests were added.",
            *survivors,
        ]
    )


def append(path: Path, row: dict[str, object]) -> None:
    """Write one row, and the header if the file is new."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path, seed: int) -> pd.DataFrame:
    """Return the rows of a seed; what is not there is empty text."""
    return pd.read_csv(path, keep_default_na=False).query("seed == @seed")


def _sites_of(table: pd.DataFrame) -> list[Site]:
    return [Site(*row) for row in table[["file", "line", "column", "before"]].to_numpy().tolist()]


def done(path: Path, seed: int) -> set[Site]:
    """Return the mutants of a seed that have a row."""
    return set(_sites_of(read(path, seed))) if path.exists() else set()


def retest(trial: Trial, path: Path, seed: int) -> None:
    """Judge the mutants of a seed that were not caught once more, and keep both outcomes."""
    table = pd.read_csv(path, keep_default_na=False)
    missed = (table.seed == seed) & ~table.outcome.isin(CAUGHT)
    missed &= ~table.note.str.startswith("equivalent")
    for index, site in zip(table.index[missed], tqdm(_sites_of(table[missed])), strict=True):
        row = trial.judge(site)
        table.loc[index, ["retested", "failed"]] = row["outcome"], row["failed"]
        table.to_csv(path, index=False, lineterminator="\n")


def draw(trial: Trial, arguments: argparse.Namespace) -> None:
    """Judge mutants that are drawn at random."""
    found = all_sites(trial.root, arguments.only)
    chosen = random.Random(arguments.seed).sample(found, min(arguments.number, len(found)))
    skipped = done(arguments.output, arguments.seed) if arguments.resume else set()
    today = {"seed": arguments.seed, "date": date.today().isoformat(), "note": "", "retested": ""}
    bar = tqdm([site for site in chosen if site not in skipped])
    for site in bar:
        row = trial.judge(site) | today
        append(arguments.output, row)
        if row["outcome"] != "caught":
            bar.write(f"{row['outcome']}: {site.file}:{site.line} {site.before}->{site.after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of paths")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds per mutant")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--retest", action="store_true", help="only what was not caught")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(directory) / name)
        trial = Trial(Path(directory), arguments.timeout)
        if arguments.retest:
            retest(trial, arguments.output, arguments.seed)
        else:
            draw(trial, arguments)
    print(summary(read(arguments.output, arguments.seed)))


if __name__ == "__main__":
    main()
