"""Files in deploy/: only options that exist, no root user, hardened."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from letheon.cli import app
from letheon.service import ServiceSettings

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
PORT = "8311"


def options() -> dict[str, bool]:
    """Options of `letheon serve`, and whether each takes a value."""
    group = typer.main.get_command(app)
    command = group.commands["serve"]  # type: ignore[attr-defined]
    return {
        name: not parameter.is_flag
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def parsed(words: list[str]) -> dict[str, str | None]:
    """Options of a command line with their values; one that does not exist fails."""
    known, values, rest = options(), {}, list(words)
    while rest:
        name = rest.pop(0)
        assert name in known, f"`letheon serve` has no option {name}"
        values[name] = rest.pop(0) if known[name] else None
    return values


def unit() -> dict[str, list[str]]:
    """Lines of the section [Service]; a name may stand there several times."""
    text = (DEPLOY / "letheon.service").read_text(encoding="utf-8")
    section = text.partition("[Service]")[2].partition("[Install]")[0]
    values: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            values.setdefault(name, []).append(value)
    return values


def instructions() -> list[tuple[str, str]]:
    """Instructions of the container file's last stage, continued lines joined."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    pairs = [(name, rest) for name, rest in lines]
    last = max(place for place, (name, _) in enumerate(pairs) if name == "FROM")
    return pairs[last:]


def only(name: str) -> str:
    (value,) = [rest for instruction, rest in instructions() if instruction == name]
    return value


def test_the_unit_starts_the_desk_with_options_that_exist() -> None:
    (line,) = unit()["ExecStart"]
    program, command, *words = shlex.split(line)
    given = parsed(words)
    assert (Path(program).name, command) == ("letheon", "serve")
    assert given["--ledger"] == "${STATE_DIRECTORY}/ledger"
    assert (given["--host"], given["--port"]) == ("127.0.0.1", PORT)
    assert "--insecure" not in given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DynamicUser", "yes"),
        ("StateDirectory", "letheon"),
        ("StateDirectoryMode", "0700"),
        ("UMask", "0077"),
        ("LimitCORE", "0"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("Restart", "on-failure"),
    ],
)
def test_the_unit_is_hardened(name: str, value: str) -> None:
    assert unit()[name] == [value]


def test_the_unit_waits_longer_than_the_desk_takes_to_stop() -> None:
    from letheon.service import server

    (text,) = unit()["TimeoutStopSec"]
    assert int(text.removesuffix("s")) >= 2 * server._STOP_SECONDS


def test_the_unit_is_one_for_configparser_too() -> None:
    reader = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    reader.optionxform = str  # type: ignore[assignment, method-assign]
    reader.read(DEPLOY / "letheon.service", encoding="utf-8")
    assert reader.sections() == ["Unit", "Service", "Install"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """The program's place is changed to one that is there; all else is as it is shipped."""
    text = (DEPLOY / "letheon.service").read_text(encoding="utf-8")
    path = tmp_path / "letheon.service"
    path.write_text(text.replace("/opt/letheon/bin/letheon", sys.executable), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "letheon" in line]
    assert ours == []
    path.write_text(path.read_text(encoding="utf-8") + "\n[Service]\nNoSuchWord=1\n", "utf-8")
    broken = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NoSuchWord" in broken.stderr


def test_the_container_starts_the_desk_with_options_that_exist() -> None:
    entry = json.loads(only("ENTRYPOINT"))
    given = parsed(json.loads(only("CMD")))
    assert entry == ["letheon", "serve"]
    assert given["--port"] == only("EXPOSE") == PORT
    (volume,) = json.loads(only("VOLUME"))
    assert str(given["--ledger"]).startswith(f"{volume}/")


def test_the_container_is_not_root_and_looks_after_itself() -> None:
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", only("USER"))
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")
    assert f"127.0.0.1:{PORT}/readyz" in only("HEALTHCHECK")
    assert only("STOPSIGNAL") == "SIGTERM"


def test_the_image_holds_named_files_only() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    sources = [name for line in copied for name in line if not name.startswith("--")]
    root = DEPLOY.parent
    assert all((root / name).exists() for name in sources if not name.startswith("/"))
    assert "." not in sources


def test_the_proxy_lets_uploads_of_the_desks_sizes_through() -> None:
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    sizes = dict(re.findall(r"location = (\S+) { client_max_body_size (\d+)m;", text))
    settings = ServiceSettings()
    assert int(sizes["/api/v1/requests/upload"]) << 20 > settings.max_upload_bytes
    assert int(sizes["/api/v1/models"]) << 20 > settings.max_model_bytes
    passed = (DEPLOY / "nginx_pass.conf").read_text(encoding="utf-8")
    assert f"proxy_pass http://127.0.0.1:{PORT};" in passed
    assert "X-Forwarded-For $remote_addr;" in passed
    assert text.count("{") == text.count("}")


def test_the_proxy_keeps_nothing_of_people_on_its_disk() -> None:
    passed = (DEPLOY / "nginx_pass.conf").read_text(encoding="utf-8").splitlines()
    assert "proxy_max_temp_file_size 0;" in passed  # answers
    assert "proxy_request_buffering off;" in passed  # uploads
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    form = re.findall(r"^log_format letheon '(.*)';$", text, re.MULTILINE)
    assert len(form) == 1
    assert not re.search(r"\$(request|request_uri|uri|args|document_uri|http_\w+)\b", form[0])
    for server in text.split("server {")[1:]:
        assert re.search(r"access_log \S+ letheon;", server)
        assert re.search(r"error_log \S+ crit;", server), "lesser lines name the path"
