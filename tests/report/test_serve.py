"""The local page: it follows its folder, answers this machine alone, and cannot be led out of the folder."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.faults.hostile import reseal
from tests.report.report_cases import ATTACK, claim, study, write_claims, write_study

from weft import Classifier, Learner
from weft.data.gaussians import ring
from weft.objectives import GAN
from weft.report.listing import RefusedError, inside, scan
from weft.report.serve import Server
from weft.report.writing import render

ACCESS = Path(__file__).with_name("access.js").read_text()
EVIL = "<script>alert(1)<"  # a folder's name cannot hold a slash


@pytest.fixture
def root(tmp_path):
    """A folder with a run, two studies (one in progress), claims, and what must not be seen beside it."""
    folder = tmp_path / "work"
    made = study(name=f"a study{ATTACK}")
    (folder / EVIL).mkdir(parents=True)
    (folder / EVIL / "results.json").write_text(json.dumps(made))
    (folder / "going").mkdir()
    (folder / "going" / "progress.json").write_text(
        json.dumps({"done": 3, "total": 12, "seconds": 4, "remaining": 12, "what": f"and-mask{ATTACK}"})
    )
    write_claims(folder / "out" / "claims", claim("spirals", "Spirals"), claim("ring", "Ring", "fails"))
    Classifier(epochs=3, random_state=0, folder=folder / "runs" / "first run").fit(np.eye(4), [0, 1, 0, 1])
    write_study(tmp_path / "secret", name="secret")
    return folder


@pytest.fixture
def server(root):
    with Server(root) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        yield server
        server.stop()
        thread.join(timeout=5)
    assert not thread.is_alive()


def ask(server, path, *, method="GET", host=None, headers=None):
    """A request as it is written, without a client's tidying of the path."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    link.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    link.putheader("Host", host if host is not None else f"127.0.0.1:{server.port}")
    for name, value in (headers or {}).items():
        link.putheader(name, value)
    link.endheaders()
    answer = link.getresponse()
    body = answer.read().decode()
    link.close()
    return answer, body


def test_it_lists_what_is_there(server, root):
    answer, page = ask(server, "/")
    assert answer.status == 200
    assert "/at/runs/first%20run" in page
    assert "/at/out/claims/spirals" in page
    assert "/at/out/claims&quot;" not in page
    assert 'href="/at/out/claims"' in page
    assert "3 of 12: and-mask" in page
    assert "secret" not in page
    assert "<script>alert" not in page
    assert "onerror=alert(2)>" not in page
    found, more = scan(root)
    assert sorted(f.kind for f in found) == ["claim", "claim", "run", "study", "study"]
    assert not more


def test_each_has_its_page(server):
    for path in ("/at/going", "/at/runs/first%20run", "/at/out/claims", "/at/%3Cscript%3Ealert(1)%3C"):
        answer, page = ask(server, path)
        assert answer.status == 200, path
        assert page.startswith("<!doctype html>")
        assert "<script>alert" not in page
        answer, parts = ask(server, path.replace("/at/", "/parts/"))
        assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
        assert "<" not in parts
        assert all(f'id="{part["id"]}"' in page for part in json.loads(parts)["parts"])


def test_headers_forbid_what_is_not_needed(server):
    answer, _page = ask(server, "/")
    rules = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in rules
    assert "connect-src 'self'" in rules
    assert "frame-ancestors 'none'" in rules
    assert "unsafe" not in rules
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    answer, _ = ask(server, "/", headers={"Origin": "http://evil.example"})
    assert answer.getheader("Access-Control-Allow-Origin") is None
    answer, body = ask(server, "/", method="HEAD")
    assert answer.status == 200
    assert body == ""
    assert int(answer.getheader("Content-Length")) > 1000


OUT_OF_IT = [
    "/at/../secret",
    "/at/%2e%2e/secret",
    "/at/%2E%2E%2Fsecret",
    "/at/..%2fsecret",
    "/at/%252e%252e/secret",
    "/at/runs/../../secret",
    "/at//etc",
    "/at/%2fetc",
    "/at/./runs",
    "/at/runs%5c..%5c..%5csecret",
    "/at/going%00",
    "/at/%ff",
    "/at/.hidden",
    "/at/C:",
    "/at/link",
    "/at/link/results.json",
    "/at/inner",
    "/at/linked",
    "/at/out/linked",
    "/at/out/linked/one",
    "/at/runs/first%20run/config.json",
    "/secret",
    "/list/x",
    "/etc/passwd",
]


def test_no_path_leads_out_of_the_folder(server, root):
    (root / "link").symlink_to(root.parent / "secret")
    (root / "inner").symlink_to(root / "runs")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "results.json").write_text(json.dumps(study(name="secret")))
    (root / "linked").mkdir()
    (root / "linked" / "results.json").symlink_to(root.parent / "secret" / "results.json")
    (root / "out" / "linked" / "one").mkdir(parents=True)
    (root / "out" / "linked" / "one" / "result.json").symlink_to(root.parent / "secret" / "results.json")
    for path in OUT_OF_IT:
        for kind in ("/at/", "/parts/"):
            answer, body = ask(server, path.replace("/at/", kind))
            assert answer.status in (400, 403, 404), path
            assert "secret" not in body, path
    page = ask(server, "/")[1]
    assert "a study" in page
    assert "secret" not in page


def test_a_path_that_is_no_path_is_refused(server, root):
    for target in ("http://evil.example/", "*", "at/going", "//evil.example/at/going"):
        assert ask(server, target)[0].status in (400, 404)
    with pytest.raises(RefusedError, match="within the folder"):
        inside(root, "..")
    assert inside(root.resolve(), "going") == root.resolve() / "going"


def test_other_hosts_are_refused(server):
    port = server.port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", f"[::1]:{port}", "0.0.0.0"):
        answer, body = ask(server, "/", host=host)
        assert answer.status == 421, host
        assert "study" not in body
    assert ask(server, "/", host=f"LOCALHOST:{port}")[0].status == 200


def test_a_request_with_two_hosts_or_none_is_refused(server):
    for hosts in ("", f"Host: 127.0.0.1:{server.port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as link:
            link.sendall(f"GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
            assert link.recv(100).split()[1] == b"421"


def test_other_methods_are_refused(server):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        answer, _ = ask(server, "/", method=method)
        assert answer.status == 405, method
        assert answer.getheader("Allow") == "GET, HEAD"
        assert answer.getheader("Content-Security-Policy")


def test_it_listens_on_this_machine_alone(server):
    assert server._http.server_address[0] == "127.0.0.1"
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", server.port)) != 0


def test_a_study_without_news_is_said_to_be_silent(server, root):
    os.utime(root / "going" / "progress.json", (1e9, 1e9))
    assert "it may have been interrupted" in ask(server, "/")[1]


def test_a_name_that_is_no_text_does_not_hide_the_others(server, root):
    os.makedirs(os.fsencode(root) + b"/\xff\xfe")
    with open(os.fsencode(root) + b"/\xff\xfe/progress.json", "w") as file:
        file.write('{"done": 1, "total": 2}')
    answer, page = ask(server, "/")
    assert answer.status == 200
    assert "1 of 2" in page
    assert "3 of 12" in page


@pytest.mark.parametrize("name", ["12:30", "a\\b", "a b%2F..", b"\xff\xfe", "?x=1#y", "é\n"])
def test_what_is_listed_can_be_opened(server, root, name):
    folder = os.path.join(os.fsencode(root), os.fsencode(name))
    os.mkdir(folder)
    with open(folder + b"/progress.json", "w") as file:
        file.write('{"done": 1, "total": 2}')
    page = ask(server, "/")[1]
    (address,) = [
        a
        for a in re.findall(r'href="(/at/[^"]*)"', page)
        if inside(root.resolve(), a[4:]) == Path(os.fsdecode(folder)).resolve()
    ]
    answer, page = ask(server, address)
    assert answer.status == 200
    assert "1 of 2" in page


def test_a_slow_client_does_not_hold_a_thread(server, monkeypatch):
    """One sends a byte now and then, never a whole request; one takes no answer; a quick one is answered meanwhile."""
    monkeypatch.setattr("weft.report.serve.PATIENCE", 1.0)

    def threads():
        return [t for t in threading.enumerate() if "process_request_thread" in t.name]

    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(b"GET / HTTP/1.1\r\n")
        assert ask(server, "/")[0].status == 200
        with suppress(OSError):
            while time.monotonic() - begun < 8:
                link.sendall(b"a")
                time.sleep(0.1)
        assert time.monotonic() - begun < 4, "it was cut off"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
        link.sendall(whole * 400)  # more than fits into what the system keeps for a socket
        end = time.monotonic() + 30
        while not threads() and time.monotonic() < end:
            time.sleep(0.05)
        while threads() and time.monotonic() < end:
            time.sleep(0.1)
        assert not threads()


def test_a_damaged_folder_is_shown_as_such(server, root):
    (root / "broken").mkdir()
    (root / "broken" / "results.json").write_text("{")
    assert "damaged" in ask(server, "/")[1]
    answer, page = ask(server, "/at/broken")
    assert answer.status == 200
    assert "It cannot be shown" in page


def test_data_outside_the_folder_is_not_read(server, root, monkeypatch):
    read = []
    monkeypatch.setattr("weft.report.page.run._table", read.append)
    Learner(GAN(hidden=(4,)), steps=2, random_state=0, folder=root / "gan").fit(ring(40))
    assert "samples are like" in ask(server, "/at/gan")[1]
    assert read == []
    render([root / "gan"])
    assert read == [root / "gan"]


def test_bad_folders_and_ports(tmp_path, server):
    with pytest.raises(ValueError, match="expected a folder to follow"):
        Server(tmp_path / "none")
    with pytest.raises(ValueError, match="expected a port"):
        Server(tmp_path, 70000)
    with pytest.raises(OSError, match="to be free"):
        Server(tmp_path, server.port)


def test_ctrl_c_ends_it_cleanly(root):
    code = (
        "import typer\nfrom weft.commands.report import register\napp = typer.Typer()\napp.callback()(lambda: None)\n"
    )
    command = [sys.executable, "-c", f"{code}register(app)\napp()", "report", "--serve", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith(f"following {root} at http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()  # or leaving the block would wait for it
        assert process.stderr.read() == ""


# --- in a browser -------------------------------------------------------------------------------------


def test_the_list_follows_the_folder(server, root, visit):
    page = visit(server.url)
    assert page.evaluate(ACCESS) == []
    table = page.locator("#studies table")
    table.locator("thead button").first.press("Enter")
    progress = {"done": 7, "total": 12, "seconds": 9, "remaining": 6, "what": "irm"}
    (root / "going" / "progress.json").write_text(json.dumps(progress))
    write_study(root / "new", name="the newest")
    page.get_by_text("7 of 12: irm, about 6.0 s to go").wait_for(timeout=30_000)
    page.get_by_role("link", name="the newest").wait_for(timeout=30_000)
    assert table.locator("thead th").first.get_attribute("aria-sort") == "ascending"
    assert page.evaluate("document.activeElement.textContent") == "name"
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.said == []
    assert all(address.startswith((server.url, "data:")) for address in page.asked)


def test_a_run_is_followed(server, root, visit):
    run = root / "runs" / "first run"
    state = json.loads((run / "state.json").read_text())
    state["tree"]["fitted"]["_phase"]["runs"][0]["done"] = False
    reseal(run, state_json=state)
    page = visit(f"{server.url}at/runs/first%20run")
    page.get_by_text("In progress; this page follows it.").wait_for(timeout=30_000)
    page.locator("details summary").first.click()
    before = page.locator("svg.chart").first.inner_html()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    more = [json.dumps({**json.loads(lines[-1]), "step": 100 + k, "loss": 1 / (k + 1)}) for k in range(5)]
    reseal(run, metrics_jsonl="\n".join([*lines, *more, ""]).encode())
    page.get_by_text("After 104 steps").wait_for(timeout=30_000)
    assert page.locator("svg.chart").first.inner_html() != before
    assert page.locator("details").first.get_attribute("open") is not None
    assert page.evaluate(ACCESS) == []
    assert page.said == []


def test_a_server_that_went_away_is_noted(root, visit):
    with Server(root) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            page = visit(server.url)
        finally:
            server.stop()
            thread.join()
    page.get_by_text("The server does not answer").wait_for(timeout=30_000)
