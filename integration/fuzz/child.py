"""One target under atheris, in a process of its own, which a crash or libFuzzer may end."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from integration.fuzz.target import Target

ROOT = Path(__file__).resolve().parents[2]
DECODERS = ("file", "format", "index", "rowids", "table")  # the packages whose coverage guides the fuzzer
SECONDS = 2.0  # CPU time of one input, so that the load of the machine has no effect
MEMORY_BYTES = 1 << 30  # address space in addition to that of the imports and the seeds
HANG_SECONDS = 60
MAX_INPUT_BYTES = 64 << 10
FAILED = 3  # exit code of a process in which the fuzzer itself, not the decoder, raised an exception


def instrumented_targets() -> dict[str, Target]:
    """Import the targets and add the instrumentation to the decoders, which takes several seconds."""
    # The other allocators of Arrow reserve address space, which is limited here.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    import atheris

    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "lancetable").rglob("*.py"))
    others = [".".join(path.parts).removesuffix(".__init__") for path in paths if path.parts[1] not in DECODERS]
    # atheris prints a line for each module.
    with redirect_stderr(StringIO()), atheris.instrument_imports(include=["lancetable"], exclude=others):
        from integration.fuzz import targets
    return targets.TARGETS


def run_forked(target: Target, folder: Path, seconds: int) -> int:
    """Fuzz a target in a fork of this process; return its exit code. Its output is in `log.txt`."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        with open(folder / "log.txt", "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        code = FAILED
        try:
            fuzz(target, folder, seconds)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fuzz(target: Target, folder: Path, seconds: int) -> None:
    """Fuzz a target, with the corpus of earlier runs; ends the process.

    The folder receives the findings: an input and a traceback for each kind of exception. An exception does not end the
    process; a crash and a hang do, and libFuzzer stores their input.
    """
    import atheris

    from integration.fuzz.mutate import Mutator

    warnings.simplefilter("ignore")
    corpus, seeds, findings = (folder / part for part in ("corpus", "seeds", "findings"))
    for path in (corpus, seeds, findings):
        path.mkdir(exist_ok=True)
    run = Runner(target.run, findings)
    for content in target.seeds():  # also creates threads and caches before the limit applies
        (seeds / hashlib.sha1(content).hexdigest()).write_bytes(content)
        run(content)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        changed = target.mutate(data, Mutator(seed, atheris.Mutate, max_size))
        return changed if len(changed) <= max_size else data

    def cross(first: bytes, second: bytes, max_size: int, seed: int) -> bytes:
        changed = target.cross(first, second, Mutator(seed, atheris.Mutate, max_size))
        return changed if len(changed) <= max_size else first[:max_size]

    options = [f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", "-rss_limit_mb=0", "-print_final_stats=1"]
    options += [f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={findings}/"]
    crossover = {} if target.cross is None else {"custom_crossover": cross}
    limit_memory(MEMORY_BYTES)
    atheris.Setup([target.name, *options, str(corpus), str(seeds)], run, custom_mutator=mutate, **crossover)
    atheris.Fuzz()


class Runner:
    """Function that decodes an input and stores it if it is a finding, once for each kind."""

    def __init__(self, decode: Callable[[bytes], None], folder: Path) -> None:
        from lancetable.errors import LanceError

        self._decode, self._folder, self._expected = decode, folder, LanceError
        self._known: set[str] = set()

    def __call__(self, data: bytes) -> None:
        started = time.process_time()
        try:
            self._decode(data)
        except self._expected:
            pass
        except Exception as error:
            self._report(_kind(error), data, traceback.format_exc())
        used = time.process_time() - started
        if used > SECONDS:
            self._report("slow", data, f"{used:.1f} s of CPU time\n")

    def _report(self, kind: str, data: bytes, text: str) -> None:
        if kind not in self._known:
            self._known.add(kind)
            (self._folder / kind).write_bytes(data)
            (self._folder / f"{kind}.txt").write_text(text)


def _kind(error: BaseException) -> str:
    """Return the type of an exception and the last line of the library that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/lancetable/" in frame.filename]
    place = f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else "target"
    return f"{type(error).__name__}-{place}"


def limit_memory(size_bytes: int) -> None:
    """Limit the address space to that in use and `size_bytes`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size_bytes, used + size_bytes))
