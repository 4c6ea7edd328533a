#!/usr/bin/env python3
"""Signs a command for Ensign nodes, in another language than Ensign's own.

Everything that a node checks is in docs/wire.md; this is that page as a program. It needs the package `cryptography`
(Debian: python3-cryptography) and an OpenSSH ed25519 key without a passphrase.

    sign.py --key ops-alice.key --fleet prod --node web1 ensure file /etc/motd content=hello ensure=present > command.json
    sign.py --key ops-alice.key --fleet prod --all apply https://h/site.tar.gz SHA256 SIZE > command.json

Then, from wherever: `ensign verify command.json`, `ensign agent accept command.json` on the node, or
`nats pub ensign.v1.prod.cmd.ensure.node.web1 < command.json`.
"""

import argparse
import base64
import datetime
import json
import os
import sys
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

COMMAND_TYPE = "application/vnd.ensign.command.v1+json"


def uuid7():
    """RFC 9562, version 7: 48 bits of milliseconds, 74 bits of randomness."""
    value = (int(time.time() * 1000) & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def pae(payload_type, payload):
    """DSSE's pre-authentication encoding: what the signature covers. Lengths are in bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(payload, key, keyid):
    """An envelope around exactly these bytes. The key id is a hint for the reader, and decides nothing."""
    signature = key.sign(pae(COMMAND_TYPE, payload))
    return {
        "payloadType": COMMAND_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode()}],
    }


def audience(args):
    chosen = [("nodes", args.node), ("groups", args.group), ("all", args.all or None)]
    to = {name: value for name, value in chosen if value}
    if len(to) != 1:
        sys.exit("exactly one of --node, --group and --all is needed")
    if args.where:
        to["where"] = args.where
    return to


def action(args):
    if args.action == "ensure":
        properties = dict(pair.split("=", 1) for pair in args.properties)
        return {"ensure": {"type": args.type, "properties": {"name": args.name, **properties}}}
    return {"apply": {"url": args.url, "sha256": args.sha256, "size": args.size}}


def command(args):
    """The command. A node takes it for at most 15 minutes after `issued`, and an id only once."""
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp = lambda when: when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = {
        "id": uuid7(),
        "fleet": args.fleet,
        "to": audience(args),
        "issued": stamp(now),
        "expires": stamp(now + datetime.timedelta(seconds=args.life)),
        "action": action(args),
        "options": {"noop": args.noop},
    }
    if args.reason:
        body["reason"] = args.reason
    return body


def arguments():
    parser = argparse.ArgumentParser(description="Signs a command for Ensign nodes.")
    parser.add_argument("--key", required=True, help="an OpenSSH ed25519 private key")
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--node", action="append", help="may be repeated")
    parser.add_argument("--group", action="append", help="may be repeated")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--where", help="an expression over facts")
    parser.add_argument("--noop", action="store_true")
    parser.add_argument("--life", type=int, default=300, metavar="SECONDS")
    parser.add_argument("--reason")
    actions = parser.add_subparsers(dest="action", required=True)
    ensure = actions.add_parser("ensure")
    ensure.add_argument("type")
    ensure.add_argument("name")
    ensure.add_argument("properties", nargs="*", metavar="KEY=VALUE")
    apply = actions.add_parser("apply")
    apply.add_argument("url")
    apply.add_argument("sha256")
    apply.add_argument("size", type=int)
    return parser.parse_args()


def main():
    args = arguments()
    with open(args.key, "rb") as file:
        key = load_ssh_private_key(file.read(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        sys.exit(f"{args.key} is no ed25519 key")
    # The bytes that are signed are the bytes that are sent: there is no canonical form to agree on.
    payload = json.dumps(command(args)).encode()
    keyid = os.path.basename(args.key).removesuffix(".key")
    json.dump(seal(payload, key, keyid), sys.stdout)


if __name__ == "__main__":
    main()
