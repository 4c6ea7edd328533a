#!/usr/bin/env python3
"""Run ensign over the golden cases and print where it differs from the record.

    check.py BINARY                       one line a mismatch; the last line is `N passed, N failed`
    check.py BINARY --only file/          only cases whose group/name contains this
    check.py BINARY --nodes ROOTFS        the cases with `node: true`, in containers; else the others

Compared: outcomes by ref in order, failure yes or no, noop messages, unmet requirements, the counts that the summary has,
the tree under target/, the state of packages and units of a node, the time where a case limits it, the requests to its
server where the case asks for that. The text of errors only where a case sets error_contains.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True

import node  # noqa: E402
from stage import Stage, find_cases  # noqa: E402

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases")
NOT_COMPARED = {"event_id", "timestamp", "duration", "mtime", "properties", "provider"}
# Flags of CCM that ensign calls otherwise.
FLAGS = {"--monitor-only": "--health-check-only"}
ANY = "*"


def outcome_of(event):
    """The outcome of one TransactionEvent, in the order of precedence of the peer's log lines."""
    label = event.get("alias") or event.get("name", "")
    one = {"ref": f"{event.get('type')}#{label}", "errors": event.get("error") or []}
    if event.get("failed"):
        one["outcome"] = "failed"
    elif event.get("unmet_requirements"):
        one["outcome"] = "unmet"
    else:
        one["outcome"] = next((s for s in ("skipped", "refreshed", "changed") if event.get(s)), "stable")
    one["unmet"] = event.get("unmet_requirements") or []
    one["noop"] = (event.get("noop_message") or True) if event.get("noop") else None
    return one


def compare_outcomes(expected, actual):
    if expected == ANY:  # refused or failed, both are right
        return
    want_refs, got_refs = [o["ref"] for o in expected], [o["ref"] for o in actual]
    if want_refs != got_refs:
        yield f"resources: expected {want_refs}, got {got_refs}"
        return
    for want, got in zip(expected, actual, strict=True):
        ref = want["ref"]
        if want["outcome"] != got["outcome"]:
            why = f" ({'; '.join(map(str, got['errors']))})" if got["errors"] else ""
            yield f"{ref}: expected {want['outcome']}, got {got['outcome']}{why}"
        if want.get("unmet", []) != got["unmet"]:
            yield f"{ref}: expected unmet {want.get('unmet', [])}, got {got['unmet']}"
        if want["outcome"] in ("stable", "changed", "refreshed"):
            message = want.get("noop")
            if message != got["noop"] and not (message == ANY and got["noop"]):
                yield f"{ref}: expected noop {message!r}, got {got['noop']!r}"


def compare_summary(expected, actual, only_health):
    for key, want in expected.items():
        if key in actual and actual[key] != want and (not only_health or key.startswith("health_check_")):
            yield f"summary: expected {key}={want}, got {actual[key]}"


def compare_apply(case, want, done, clean):
    """Mismatches of one apply run, and all the error text there is to search in."""
    found, text, events, summary = [], done.stderr, [], {}
    try:
        document = json.loads(clean(done.stdout))
        events, summary = document.get("events") or [], document.get("summary") or {}
        text += "\n" + str(document.get("error", ""))
    except (json.JSONDecodeError, AttributeError):
        text += "\n" + done.stdout
        if "error" not in want and want["outcomes"] != ANY:
            found.append("stdout is not one JSON object")
    outcomes = [outcome_of(e) for e in events]
    text += "\n" + "\n".join(str(e) for o in outcomes for e in o["errors"])
    monitor = "--monitor-only" in case.args
    if monitor and want["outcomes"] != ANY:  # the peer does not log resources without checks
        listed = {o["ref"] for o in want["outcomes"]}
        outcomes = [o for o in outcomes if o["ref"] in listed or o["outcome"] == "failed"]
    if (done.returncode != 0) != want["failed"]:
        found.append(f"expected {'a failure' if want['failed'] else 'success'}, got exit {done.returncode}: {done.stderr.strip()[:300]}")
    found += compare_outcomes(want["outcomes"], outcomes)
    found += compare_summary(want.get("summary", {}), summary, monitor)
    return found, text


def subset(want, got, where):
    """Everything expected is there; more is fine."""
    if want == ANY:
        return
    if isinstance(want, dict) and isinstance(got, dict):
        for key, value in want.items():
            if key in NOT_COMPARED:
                continue
            if key == "error":
                if bool(value) != bool(got.get(key)):
                    yield f"{where}.error: expected {value!r}, got {got.get(key)!r}"
            elif key not in got:
                if value not in (None, [], "", False):
                    yield f"{where}.{key}: missing, expected {value!r}"
            else:
                yield from subset(value, got[key], f"{where}.{key}")
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for at, (w, g) in enumerate(zip(want, got, strict=True)):
            yield from subset(w, g, f"{where}[{at}]")
    elif want != got:
        yield f"{where}: expected {want!r}, got {got!r}"


def compare_pipe(want, done, clean):
    found = []
    if done.returncode != want["exit"]:
        found.append(f"expected exit {want['exit']}, got {done.returncode}")
    try:
        got = json.loads(clean(done.stdout))
    except json.JSONDecodeError:
        return [*found, f"stdout is not one JSON object: {done.stdout[:200]!r}"], done.stdout + done.stderr
    if "error" not in want["response"] and got.get("error"):
        found.append(f"unexpected error {got['error']!r}")
    found += subset(want["response"], got, "response")
    return found, json.dumps(got, ensure_ascii=False).replace('\\"', '"') + done.stderr


def compare_tree(want, got):
    for path in sorted(want.keys() | got.keys()):
        if path not in got:
            yield f"tree: {path} is missing"
        elif path not in want:
            yield f"tree: {path} should not be there"
        else:
            for key in ("type", "mode", "owner", "link", "sha256"):
                a, b = want[path].get(key), got[path].get(key)
                if a != b and key == "sha256":
                    yield f"tree: {path} has other content: expected {want[path].get('text', a)!r}, got {got[path].get('text', b)!r}"
                elif a != b:
                    yield f"tree: {path} expected {key} {a}, got {b}"


def compare_host(want, got):
    """Packages, units and files of a node; "*" in the expectation stands for anything."""
    for kind, things in want.items():
        for name, expected in things.items():
            actual = got.get(kind, {}).get(name)
            if isinstance(expected, dict) and isinstance(actual, dict):
                expected = {k: actual.get(k) if v == ANY else v for k, v in expected.items()}
            if expected not in (actual, ANY):
                yield f"host: {kind[:-1]} {name}: expected {expected}, got {actual}"


def check(binary, case, nodes):
    """All mismatches of one case."""
    expected, found, texts = case.expected(), [], []
    with Stage(case, nodes, binary) as stage:
        program = node.PROGRAM if stage.node else binary
        flags = [FLAGS.get(flag, flag) for flag in map(stage.fill, case.args)]
        for number, want in enumerate(expected["runs"]):
            if number and case.spec.get("between"):
                stage.script(case.spec["between"])
            at, started = f"run {number + 1}: ", time.monotonic()
            try:
                if case.is_pipe:
                    done = stage.spawn([program, "ensure", "api", "pipe", *flags], stdin=stage.request())
                    some, text = compare_pipe(want, done, stage.clean)
                else:
                    done = stage.spawn([program, "apply", stage.manifest, *flags, "--output", "json"])
                    some, text = compare_apply(case, want, done, stage.clean)
            except subprocess.TimeoutExpired as slow:
                return [*found, f"{at}no end after {slow.timeout} seconds"]
            took, limit = time.monotonic() - started, case.spec.get("max_seconds")
            if limit and took > limit:
                some.append(f"took {took:.1f} seconds, at most {limit} expected")
            asked = stage.server.take() if stage.server else []
            if case.spec.get("compare_http") and asked != want.get("http", []):
                some.append(f"requests: expected {want.get('http', [])}, got {asked}")
            if stage.node:
                some += compare_host(want.get("host", {}), stage.host())
            found += [at + s for s in some]
            texts.append(stage.clean(text))
        found += compare_tree(expected["tree"], stage.tree())
    phrases = case.spec.get("error_contains") or []
    for phrase in [phrases] if isinstance(phrases, str) else phrases:
        if not any(phrase in text for text in texts):
            found.append(f"no error says {phrase!r}")
    return found


def main():
    args = argparse.ArgumentParser(description="Run ensign over the golden cases.")
    args.add_argument("binary")
    args.add_argument("--only", action="append")
    args.add_argument("--jobs", type=int, default=os.cpu_count())
    args.add_argument("--nodes", metavar="ROOTFS", help="run the cases that need a host, in containers of this root")
    opts = args.parse_args()
    cases = [case for case in find_cases(CASES, opts.only) if case.is_node == bool(opts.nodes)]
    binary = os.path.realpath(opts.binary)

    def one(case):
        try:
            return check(binary, case, nodes)
        except Exception as error:  # a broken case must not hide the others
            return [f"{type(error).__name__}: {error}"]

    failed = 0
    with node.Nodes(opts.nodes) as nodes, concurrent.futures.ThreadPoolExecutor(opts.jobs) as pool:
        for case, found in zip(cases, pool.map(one, cases), strict=True):
            failed += bool(found)
            for line in found:
                print(f"{case.name}: {' / '.join(line.split(chr(10)))[:1000]}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
