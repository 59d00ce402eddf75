"""What pip is set up with on this machine, in the form in which it is handed to local nodes. Pure functions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

# Where the machine's certificates are in a node: beside the node's own, which its package manager replaces.
CERTIFICATES = "/etc/ssl/host-certificates.crt"
# Options that say where packages come from; the rest (user, target, ...) is the machine's own business.
HANDED = (
    "index-url", "extra-index-url", "find-links", "no-index", "constraint", "trusted-host", "proxy", "timeout",
    "default-timeout", "retries", "prefer-binary", "only-binary",
)  # fmt: skip
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def parse(listing: str) -> dict[str, str]:
    """Return pip's options from the output of `pip config list`; the environment wins over files, as it does in pip."""
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        name, equals, quoted = line.partition("=")
        section, _, option = name.rpartition(".")
        if not equals or section not in ("global", "install", "download", ":env:"):
            continue
        rank = {":env:": 2, "global": 0}.get(section, 1)
        if rank >= found.get(option, (-1, ""))[0]:
            found[option] = (rank, str(ast.literal_eval(quoted)))
    return {option: value for option, (_, value) in found.items()}


def local_paths(options: Mapping[str, str]) -> list[str]:
    """Return the existing paths that the options name, sorted: directories of wheels, file indexes, constraint files.

    The pages of a file index may link beside it, so its parent directory is taken.
    """
    paths: set[str] = set()
    for option in ("find-links", "constraint", "index-url", "extra-index-url"):
        for word in options.get(option, "").split():
            url = urlparse(word)
            path = Path(unquote(url.path)) if url.scheme == "file" else Path(word)
            if url.scheme not in ("", "file") or not path.is_absolute():
                continue
            path = path.parent if option.endswith("index-url") else path
            if path.exists() and str(path) != "/":
                paths.add(str(path))
    return sorted(path for path in paths if not any(path != other and path.startswith(f"{other}/") for other in paths))


def configuration(options: Mapping[str, str], has_certificates: bool) -> str:
    """Return the text of the nodes' pip.conf."""
    lines = ["# Written by local/up.yml: what pip is set up with on the machine that made this node.", "[global]"]
    for option in HANDED:
        if option in options:
            words = options[option].split()
            lines.append(f"{option} = {words[0] if len(words) == 1 else ''}".rstrip())
            lines += [f"    {word}" for word in words] if len(words) > 1 else []
    if has_certificates:
        lines.append(f"cert = {CERTIFICATES}")
    return "\n".join(lines) + "\n"


def certificates(options: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the path of the bundle of certificates that pip uses on this machine, or '' for pip's own."""
    candidates = [options.get("cert", "")]
    candidates += [environment.get(name, "") for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")]
    return next((path for path in candidates if path and Path(path).is_file()), "")
