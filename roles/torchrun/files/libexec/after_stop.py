"""systemd runs this, as root, when the agent has ended: it reports how, and disables a unit that is no longer wanted.

A unit stays enabled only while its job is wanted, so a node that reboots in the middle of a job rejoins it, and one
that reboots afterwards does not start it again.
"""

from __future__ import annotations

import os
import pwd
import subprocess

import run_state


def state_after(code: str, status: str, outcome: str) -> str:
    """Return the state to report, from systemd's EXIT_CODE and EXIT_STATUS and the job's outcome ('' while open)."""
    if outcome == "stopped":
        return "stopped"
    if code == "exited" and status == "0":
        return "finished"
    if code == "exited" and status == str(run_state.EXIT_FAILED):
        return "failed"
    if (code == "exited" and status == str(run_state.EXIT_STOPPED)) or (code == "killed" and status == "TERM"):
        return "interrupted"  # stopped with systemctl or by a shutdown: it goes on at the next boot
    return "restarting"


def main() -> None:
    """Report as the unprivileged user (root may be nobody on the shared storage), then disable the unit as root."""
    account = pwd.getpwnam(os.environ["TORCHRUN_USER"])
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    before = run_state.last_report()
    state = state_after(
        os.environ.get("EXIT_CODE", ""), os.environ.get("EXIT_STATUS", ""), run_state.outcome().get("status", "")
    )
    kept = run_state.ranks_of(before) | {key: before[key] for key in ("failure", "message", "exits") if key in before}
    run_state.report(state, exit_status=os.environ.get("EXIT_STATUS", ""), **kept)
    os.seteuid(0)
    os.setegid(0)
    if state in ("finished", "failed", "stopped"):
        unit = f"torchrun@{os.environ['TORCHRUN_JOB']}.service"
        subprocess.run(["systemctl", "--quiet", "--no-reload", "disable", unit], check=False)


if __name__ == "__main__":
    main()
