"""Confinement of the worker process: resource limits, no new privileges, namespaces, Landlock. Standard
library only.

Loaded by `worker.py` in a process that never sees the rest of this package. `apply` takes one layer as a
message and returns what of it held, as data for the verification record: a mechanism that the system lacks
is reported, not assumed. Layers only ever tighten: the first one is applied before torch is imported, the
second one before any result counts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
SIGKILL = 9

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
ALL_V1 = (1 << 13) - 1
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
NET_BIND_CONNECT = 0b11
SCOPE_ALL = 0b11
READ = READ_FILE | READ_DIR


def apply(message):
    """Apply the mechanisms that `message` names; returns {mechanism: what held}."""
    held = {}
    _prctl(PR_SET_PDEATHSIG, SIGKILL)
    if message.get("limits") is not None:
        held["rlimits"] = set_limits(message["limits"])
    if message.get("isolate"):
        held["no_new_privs"] = _prctl(PR_SET_NO_NEW_PRIVS, 1)
        held["namespaces"] = isolate_network()
    if message.get("paths") is not None:
        held["landlock"] = restrict_files(message["paths"])
    return held


def set_limits(limits):
    """Set each soft and hard limit, by name such as RLIMIT_CORE; returns the names that held."""
    done = []
    for name, value in limits.items():
        which = getattr(resource, name, None)
        if which is None:
            continue
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
        done.append(name)
    return done


def isolate_network():
    """A network and IPC namespace of its own, through a user namespace where that takes no privilege."""
    libc = _libc()
    uid, gid = os.getuid(), os.getgid()
    for flags, label in (
        (CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC, "user,net,ipc"),
        (CLONE_NEWNET | CLONE_NEWIPC, "net,ipc"),
    ):
        if libc.unshare(flags) == 0:
            if flags & CLONE_NEWUSER:
                _map_identity(uid, gid)
            return label
    return "none"


def _map_identity(uid, gid):
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError:
            return


def restrict_files(paths):
    """Landlock: what may be read, read and executed, or written, by path; everything else in the file
    system is denied.

    Also denied, where the kernel's version knows it: TCP, and signals and ptrace towards processes outside.
    """
    libc = _libc()
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return "unavailable"
    rights = ALL_V1 | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rights |= IOCTL_DEV if version >= 5 else 0
    attributes = struct.pack(
        "QQQ", rights, NET_BIND_CONNECT if version >= 4 else 0, SCOPE_ALL if version >= 6 else 0
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return "unavailable"
    for kind, allowed in (("read", READ), ("execute", READ | EXECUTE), ("write", rights & ~EXECUTE)):
        for path in paths.get(kind, ()):
            _allow(libc, ruleset, path, allowed)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    result = libc.syscall(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
    return f"abi {version}" if result == 0 else "unavailable"


def _allow(libc, ruleset, path, allowed):
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        directory = os.path.isdir(path)
        file_rights = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
        rule = struct.pack("=Qi", allowed if directory else allowed & file_rights, fd)
        libc.syscall(
            LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(RULE_PATH_BENEATH),
            rule,
            ctypes.c_uint32(0),
        )
    finally:
        os.close(fd)


def _prctl(option, value):
    return _libc().prctl(option, value, 0, 0, 0) == 0


def _libc():
    return ctypes.CDLL(None, use_errno=True)
