"""Ceph's radosgw, a real S3 server, in one directory and without system services.

It consists of a monitor, one OSD in memory and the gateway, and starts in about 25 seconds. Debian packages: ceph-mon
ceph-osd radosgw ceph-common.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from integration.servers.process import ServerError, free_port, running, wait_for_http, wait_for_port

__all__ = ["ceph", "is_installed"]

_PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph-authtool", "monmaptool")
_SECONDS = 240  # limit for each step; all steps take about 25 on an idle machine


def is_installed() -> bool:
    """Return True if the server can be started on this machine."""
    return all(shutil.which(name) for name in _PROGRAMS)


@contextlib.contextmanager
def ceph() -> Iterator[dict[str, str]]:
    """Run the server in a temporary directory and yield its storage options. The caller creates the buckets.

    A failed start is repeated once, because the parts may not find each other on a busy machine. Raises ServerError
    with the logs of all parts.
    """
    for is_last in (False, True):
        with contextlib.ExitStack() as stack:
            # The paths of sockets are limited in length, so the directory of the tests is not used.
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ceph")))
            try:
                options = _start(root, stack)
            except (ServerError, subprocess.SubprocessError) as error:
                if is_last:
                    raise ServerError(f"{error}\n{_logs(root)}") from error
                continue
            yield options
            return


def _start(root: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """Start all parts, which end with the stack."""
    monitor, gateway, fsid = free_port(), free_port(), str(uuid.uuid4())
    configuration = root / "ceph.conf"
    configuration.write_text(_configuration(root, monitor, gateway, fsid))
    for directory in ("mon", "osd", "run", "rgw"):
        (root / directory).mkdir()

    def run(*command: str) -> None:
        with (root / "commands.out").open("ab") as errors:
            subprocess.run([*command], check=True, cwd=root, timeout=_SECONDS, stdout=subprocess.DEVNULL, stderr=errors)

    def start(log: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        path = root / f"{log}.out"
        return stack.enter_context(running(command, path)), path

    conf = ("-c", str(configuration))
    keyring, monmap = str(root / "keyring"), str(root / "monmap")
    run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
    run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{monitor}]", "--fsid", fsid, monmap)
    run("ceph-mon", *conf, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
    process, log = start("mon", "ceph-mon", *conf, "-i", "a", "-f")
    wait_for_port(monitor, process, log, _SECONDS)
    run("ceph", *conf, "osd", "create")
    run("ceph", *conf, "osd", "crush", "add", "osd.0", "1.0", "host=lab", "root=default")
    run("ceph-osd", *conf, "-i", "0", "--mkfs")
    start("osd", "ceph-osd", *conf, "-i", "0", "-f")
    process, log = start("rgw", "radosgw", *conf, "-n", "client.rgw", "-f")
    wait_for_http(gateway, process, log, _SECONDS)
    key, secret = "lab", "labsecretlab"
    run(
        "radosgw-admin", *conf, "-n", "client.rgw", "user", "create", "--uid=lab", "--display-name=lab",
        f"--access-key={key}", f"--secret={secret}",
    )  # fmt: skip
    return {
        "aws_endpoint": f"http://127.0.0.1:{gateway}",
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


def _logs(root: Path) -> str:
    """Return the end of the log of each part."""
    paths = sorted([*root.glob("*.log"), *root.glob("*.out")])
    return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)


def _configuration(root: Path, monitor: int, gateway: int, fsid: str) -> str:
    user = "root" if os.getuid() == 0 else ""
    return f"""
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{monitor}]
mon initial members = a
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
osd_pool_default_pg_num = 4
osd_objectstore = memstore
# The OSD tells the monitor of itself when it starts, and at times so early that the monitor answers "wrong fsid": then
# it gives up, and the gateway waits for ever. What it would tell is said by hand.
osd_class_update_on_start = false
osd_crush_update_on_start = false
memstore_device_bytes = 4294967296
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr2 = false
run_dir = {root}/run
admin_socket = {root}/run/$name.$pid.asok
pid_file = {root}/run/$name.pid
log_file = {root}/$name.log
keyring = {root}/keyring
mon_data = {root}/mon
osd_data = {root}/osd
rgw_data = {root}/rgw
{"setuser = root" if user else ""}
{"setgroup = root" if user else ""}
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{gateway}
"""
