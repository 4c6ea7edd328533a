"""The cases of this folder: what each is, and a fresh temporary directory (and host) with its files."""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import threading

import yaml

import node

NOT_STAGED = {"case.yaml", "expected.json", "expected_fixed.json", "request.yaml", "serve"}
CASE_KEYS = {
    "about", "args", "setup", "between", "runs", "serve", "env",
    "error_contains", "max_seconds", "compare_http", "peer_quirk",
    "node", "needs", "observe",
}


class Case:
    """One folder below cases/GROUP."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.name = f"{self.folder.parent.name}/{self.folder.name}"
        self.spec = yaml.safe_load((self.folder / "case.yaml").read_text()) or {}
        unknown = set(self.spec) - CASE_KEYS
        if unknown:
            raise ValueError(f"{self.name}: unknown keys in case.yaml: {sorted(unknown)}")
        self.runs = self.spec.get("runs", 2)
        self.args = [str(a) for a in self.spec.get("args", [])]
        self.is_pipe = (self.folder / "request.yaml").exists()
        self.needs = self.spec.get("needs", [])
        self.is_node = bool(self.spec.get("node"))
        if set(self.needs) - node.NEEDS or (self.needs or "observe" in self.spec) and not self.is_node:
            raise ValueError(f"{self.name}: needs {self.needs} and observe are for a node, and only {sorted(node.NEEDS)}")

    def expected(self):
        """Returns the record of CCM, or the corrected one where CCM is known to be wrong."""
        fixed = self.folder / "expected_fixed.json"
        path = fixed if fixed.exists() else self.folder / "expected.json"
        return json.loads(path.read_text())


def find_cases(folder, only=None):
    cases = [Case(path.parent) for path in sorted(pathlib.Path(folder).rglob("case.yaml"))]
    return [case for case in cases if not only or any(text in case.name for text in only)]


class Server:
    """Serves the files of a case over http on loopback, and remembers what was asked."""

    def __init__(self, folder, spec):
        self.requests = []
        served, spec = pathlib.Path(folder), spec if isinstance(spec, dict) else {}
        auth, headers = spec.get("auth"), spec.get("require_headers") or {}
        log = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                code, body = 200, b""
                want = "Basic " + base64.b64encode(auth.encode()).decode() if auth else None
                path = served / self.path.split("?")[0].lstrip("/")
                if want and self.headers.get("Authorization") != want:
                    code = 401
                elif any(self.headers.get(k) != v for k, v in headers.items()):
                    code = 403
                elif not path.is_file():
                    code = 404
                else:
                    body = path.read_bytes()
                log.append(f"GET {self.path} {code}")
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def take(self):
        taken, self.requests[:] = list(self.requests), []
        return taken

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class Stage:
    """A fresh @ROOT@ with the files of a case in it, and a fresh host around it for a case with `node: true`."""

    def __init__(self, case, nodes=None, program=None):
        self.case = case
        # a node has a /tmp of its own, but the same /var/tmp once it is bound there
        run = os.environ.get("ENSIGN_RUN", "")  # tests/run looks for what is left of a run
        self.root = os.path.realpath(tempfile.mkdtemp(prefix=f"ensign-golden-{run}-", dir="/var/tmp" if case.is_node else None))
        os.chmod(self.root, 0o755)
        self.server = self.node = None
        if "serve" in case.spec:
            self.server = Server(case.folder / "serve", case.spec["serve"])
        root = pathlib.Path(self.root)
        for sub in ("manifest", "target", "home"):
            (root / sub).mkdir(mode=0o755)
        for path in sorted(case.folder.rglob("*")):
            rel = path.relative_to(case.folder)
            if rel.parts[0] in NOT_STAGED:
                continue
            to = root / "manifest" / rel
            if path.is_dir():
                to.mkdir(exist_ok=True)
            else:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(self.fill(path.read_bytes()))
                to.chmod(0o644)
        self.manifest = str(root / "manifest" / "manifest.yaml")
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": f"{self.root}/home",
            "XDG_CONFIG_HOME": f"{self.root}/home/.config",
            "ROOT": self.root,
            "TZ": "UTC",
            "LANG": "C.UTF-8",
        }
        self.env.update({k: self.fill(str(v)) for k, v in (case.spec.get("env") or {}).items()})
        try:
            if case.is_node:
                self.node = nodes.start(case.needs, binds=[self.root], program=program)
            if case.spec.get("setup"):
                self.script(case.spec["setup"])
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.node:
            self.node.stop()
        if self.server:
            self.server.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def fill(self, text):
        """Replace the placeholders by this stage's values."""
        if isinstance(text, bytes):
            with contextlib.suppress(UnicodeDecodeError):
                return self.fill(text.decode()).encode()
            return text
        text = text.replace("@ROOT@", self.root)
        return text.replace("@HTTP@", self.server.url) if self.server else text

    def clean(self, text):
        """The way back: put the placeholders in, and flatten what differs from run to run."""
        if self.server:
            text = text.replace(self.server.url, "@HTTP@")
            text = text.replace(self.server.url.split("//")[1], "@HTTP_HOST@")
        text = text.replace(self.root, "@ROOT@")
        text = re.sub(r"/tmp/[A-Za-z_.-]*\d{5,}[A-Za-z0-9_.-]*", "@TEMP@", text)
        text = re.sub(r"(\.(?:zip|tgz|tar|gz))-\d{5,}", r"\1-@N@", text)
        return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x@", text)

    def script(self, text):
        done = self.spawn(["/bin/sh", "-e", "-c", self.fill(text)])
        if done.returncode != 0:
            raise RuntimeError(f"{self.case.name}: script failed: {done.stdout[-2000:]}{done.stderr}")

    def host(self):
        """What the case wants to know of its node, now."""
        observed = self.node.observe(self.case.spec.get("observe") or {}, self.fill)
        return json.loads(self.clean(json.dumps(observed, ensure_ascii=False)))

    def spawn(self, argv, stdin=None):
        if self.node:
            argv = self.node.argv(argv, self.root)
        return subprocess.run(
            argv, cwd=self.root, env=self.env, input=stdin, stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True, text=True, errors="replace", timeout=120 if self.node else 90, umask=0o022,
        )

    def request(self):
        return self.fill((self.case.folder / "request.yaml").read_text())

    def tree(self):
        base = pathlib.Path(self.root) / "target"
        found = {}
        for path in sorted(base.rglob("*")):
            info = path.lstat()
            rel = self.clean(str(path.relative_to(base)))
            entry = {"mode": f"{stat.S_IMODE(info.st_mode):04o}"}
            if stat.S_ISLNK(info.st_mode):
                entry = {"type": "link", "link": self.clean(os.readlink(path))}
            elif stat.S_ISDIR(info.st_mode):
                entry["type"] = "directory"
            elif stat.S_ISREG(info.st_mode):
                body = path.read_bytes().replace(self.root.encode(), b"@ROOT@")
                if self.server:
                    body = body.replace(self.server.url.encode(), b"@HTTP@")
                entry.update(type="file", size=len(body), sha256=hashlib.sha256(body).hexdigest())
                if 0 < len(body) <= 240:  # for the reader; the checker compares the digest
                    with contextlib.suppress(UnicodeDecodeError):
                        entry["text"] = body.decode()
            else:
                entry["type"] = "other"
            if (info.st_uid, info.st_gid) != (0, 0):
                entry["owner"] = f"{info.st_uid}:{info.st_gid}"
            found[rel] = entry
        return found
