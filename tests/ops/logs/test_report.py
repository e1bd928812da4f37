"""The report: one page that loads nothing, looked at in a real browser; and one picture."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.ops.cli.terminal import EXIT_PROBLEM
from penstock.ops.logs.report import charts
from penstock.ops.logs.totals import series
from tests.ops.command_line import penstock
from tests.ops.logs.helpers import FLEET, SAMPLES, batch, line

PLOTS = ("Throughput", "Latency", "Triggers", "Padding", "Cache", "Lag", "Errors", "Stages", "Costs")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    code, text = penstock("logs", "report", str(out), str(FLEET))
    assert (code, "Written" in text) == (0, True), text
    return out


@pytest.mark.slow
def test_the_page_is_one_file_without_scripts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert "<script" not in text
    assert [one for one in re.findall(r'(?:src|href)="([^"]+)"', text) if not one.startswith(("#", "data:"))] == []
    assert re.findall(r"url\((?!#)[^)]*\)", text) == []
    assert "default-src 'none'" in text
    for name in PLOTS:
        assert f'aria-label="{name}"' in text
    assert "exited by SIGKILL" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 100
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)) <= {
        pair for one in ids for pair in ((one, ""), ("", one))
    }


@pytest.fixture
def chromium() -> str:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium to look at the page of `penstock logs report`")
    return CHROMIUM


@pytest.mark.slow
def test_a_browser_shows_all_plots_and_reports_no_error(page: Path, chromium: str, tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1440,3000"]
    picture = tmp_path / "page.png"
    command = [chromium, *options, "--enable-logging=stderr", "--v=0", f"--screenshot={picture}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [one for one in done.stderr.splitlines() if ":CONSOLE" in one] == []
    assert picture.stat().st_size > 50_000
    dom = subprocess.run(
        [chromium, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=300
    ).stdout
    assert dom.count('role="img"') == len(PLOTS)
    assert dom.count("<path") > 200


def test_each_trigger_has_a_curve_also_where_there_are_more_than_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    triggers = [f"trigger {number}" for number in range(12)]
    with monkeypatch.context() as changed:
        changed.setattr(series, "TRIGGERS", tuple(triggers))
        drawn = {chart.title: chart.draw for chart in importlib.reload(charts).CHARTS}
    importlib.reload(charts)
    assert [curve.label for curve in getattr(drawn["Triggers"], "curves", ())] == triggers


@pytest.mark.slow
def test_the_picture_is_one_of_all_plots(tmp_path: Path) -> None:
    out = tmp_path / "report.png"
    code, text = penstock("logs", "report", str(out), str(SAMPLES), "worker=1")
    assert code == 0, text
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.stat().st_size > 20_000


@pytest.mark.slow
def test_logs_with_few_kinds_of_events_have_a_page(tmp_path: Path) -> None:
    log, out = tmp_path / "worker.log", tmp_path / "report.html"
    evil = "</script><b>&"
    log.write_text(batch(0) + line("worker_ready", model=evil) + line("partitions_assigned", partitions=evil))
    code, text = penstock("logs", "report", str(out), str(log))
    assert code == 0, text
    page = out.read_text(encoding="utf-8")
    assert page.count("Nothing in these logs.") == 6
    assert evil not in page
    assert "&lt;/script&gt;" in page


def test_errors_come_before_the_logs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for out, expected in (("report.pdf", "OUT.html or OUT.png"), ("none/report.html", "There is no directory")):
        code, text = penstock("logs", "report", str(tmp_path / out), "none.log")
        assert (code, expected in text) == (EXIT_PROBLEM, True), text
    code, text = penstock("logs", "report", str(tmp_path / "report.html"), str(FLEET), "event=none")
    assert (code, "nothing to plot" in text) == (EXIT_PROBLEM, True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text = penstock("logs", "report", str(tmp_path / "report.html"), "none.log")
    assert (code, "pip install 'penstock[logs]'" in text) == (EXIT_PROBLEM, True)
