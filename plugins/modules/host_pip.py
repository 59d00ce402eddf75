#!/usr/bin/python
"""Ansible module: find out what pip is set up with on this machine, to hand it to local nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_pip
short_description: Find out what pip is set up with on this machine
description:
  - Reads C(pip config list) and the environment. Changes nothing.
options: {}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Find out what pip is set up with
  torchrun.cluster.host_pip:
"""

RETURN = r"""
configuration: {description: Text of a pip.conf., type: str, returned: always}
volumes: {description: Read-only mounts that it needs., type: list, returned: always}
proxies: {description: Lines of /etc/environment., type: str, returned: always}
"""

import os
import subprocess
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import host_pip


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    options = host_pip.parse(done.stdout)
    bundle = host_pip.certificates(options, os.environ)
    volumes = [f"{path}:{path}:ro" for path in host_pip.local_paths(options)]
    if bundle:
        volumes.append(f"{bundle}:{host_pip.CERTIFICATES}:ro")
    proxies = [f"{name}={os.environ[name]}\n" for name in host_pip.PROXIES if os.environ.get(name)]
    module.exit_json(
        changed=False,
        configuration=host_pip.configuration(options, bool(bundle)),
        volumes=volumes,
        proxies="".join(proxies),
    )


if __name__ == "__main__":
    main()
