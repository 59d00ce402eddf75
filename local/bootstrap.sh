# Shared by ./demo and ./check (sourced by bash): step titles, prerequisites of this machine, the virtual environment.
#
# Everything runs as the person who typed the command. Only what needs root runs under sudo: apt, and making and
# removing local nodes. Their keys are then given to that person, so that `ansible-playbook site.yml` works by hand.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cache=$root/.cache
tools=$root/.venv/bin
mkdir -p "$cache"
# Ansible insists on UTF-8, which a bare machine's default locale is not.
case $(locale charmap 2>/dev/null) in UTF-8) ;; *) export LC_ALL=C.UTF-8 ;; esac
# Bytecode makes every later start faster; some machines switch it off for everybody.
unset PYTHONDONTWRITEBYTECODE
case $PATH in "$tools":*) ;; *) export PATH=$tools:$PATH ;; esac
export ANSIBLE_CONFIG=$root/ansible.cfg

complain() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# step TITLE COMMAND...: say what happens, do it, say how long it took. A failure ends the program.
step() {
  local title=$1 start=$SECONDS status=0
  shift
  printf '\n==> %s\n' "$title"
  "$@" || status=$?
  [ "$status" -eq 0 ] || complain "\"$title\" failed; see above."
  printf '    done in %d s\n' "$((SECONDS - start))"
}

# quietly LOG COMMAND...: keep the output in a file, and show its end only when the command fails.
quietly() {
  local log=$cache/$1
  shift
  "$@" >"$log" 2>&1 </dev/null || { tail -n 15 "$log" >&2; echo "    (all of it: $log)" >&2; return 1; }
}

# as_root COMMAND...: with the caller's environment, so that proxies and pip's settings hold.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; return; fi
  command -v sudo >/dev/null || complain "this needs root, and there is no sudo: run it as root."
  # HOME is root's, or files of root would appear in the caller's; pip's configuration stays the caller's.
  sudo -E -H env "PATH=$PATH" "XDG_CONFIG_HOME=${XDG_CONFIG_HOME:-$HOME/.config}" PYTHONDONTWRITEBYTECODE=1 "$@"
}

# Packages that are not there, of those that local nodes need and, with an argument "python", of those that .venv needs.
missing_packages() {
  local wanted=() name
  if [ "${1:-}" = python ]; then
    usable_python >/dev/null || wanted+=(python3 python3-venv)
  else
    for name in podman:podman runc:runc iptables:iptables mmdebstrap:mmdebstrap ip:iproute2 \
      ssh-keygen:openssh-client nsenter:util-linux; do
      command -v "${name%%:*}" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "${name%%:*}" >/dev/null || wanted+=("${name##*:}")
    done
    [ -x /usr/lib/podman/netavark ] || [ -x /usr/libexec/podman/netavark ] || wanted+=(netavark)
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || wanted+=(debian-archive-keyring)
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || wanted+=(ca-certificates)
  fi
  echo "${wanted[*]}"
}

install_packages() {
  local wanted
  read -r -a wanted <<<"$(missing_packages "${1:-}")"
  [ "${#wanted[@]}" -gt 0 ] || return 0
  command -v apt-get >/dev/null ||
    complain "this machine has no apt: install ${wanted[*]} with its own package manager, then run this again."
  echo "    installing ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  quietly apt.log as_root apt-get -q -o DPkg::Lock::Timeout=300 update ||
    complain "the package lists could not be fetched: check the network, or install ${wanted[*]} yourself."
  quietly apt.log as_root apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${wanted[@]}" ||
    complain "${wanted[*]} could not be installed: see the lines above."
}

# Print a Python that is new enough for Ansible and can make virtual environments.
usable_python() {
  local candidate
  for candidate in python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

# make_venv LOCK: .venv with what the lock file says; nothing is done when it has that already.
make_venv() {
  local lock=$1 python stamp=$root/.venv/installed-$1 wanted
  wanted=$(sha256sum <"$root/$lock")
  # One whose Python is gone or too old, or that was made elsewhere and moved here, does not work.
  if ! "$tools/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    ! grep -qsF "$root/.venv" "$root/.venv/bin/activate"; then
    rm -rf "$root/.venv"
  fi
  [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
  if [ ! -x "$tools/pip" ]; then
    python=$(usable_python) || complain "no Python 3.11 or newer with the module venv was found: install one."
    quietly venv.log "$python" -m venv "$root/.venv" || complain ".venv could not be made: see the lines above."
  fi
  echo "    installing what $lock lists into .venv"
  quietly pip.log "$tools/python" -m pip install --disable-pip-version-check --require-hashes -r "$root/$lock" ||
    complain "the packages of $lock could not be installed: check the network and pip's configuration (pip config list)."
  echo "$wanted" >"$stamp"
}

# The build of torch that the trainer's tests run on, as the nodes have it: from where pip looks anyway, if it is there.
install_torch() {
  local wanted
  # The version is written in one place, the lock file of the nodes' CPU venv.
  wanted=$(sed -n 's/^\(torch==[^ ;\\]*\).*/\1/p' "$root"/roles/pytorch/files/locks/cpu-*.txt | tail -n 1)
  [ -n "$wanted" ] || complain "roles/pytorch/files/locks has no lock file for CPU nodes."
  [ "$("$tools/python" -m pip freeze 2>/dev/null | grep '^torch==')" != "$wanted" ] || return 0
  echo "    installing $wanted into .venv"
  quietly torch.log "$tools/python" -m pip install --disable-pip-version-check "$wanted" ||
    quietly torch.log "$tools/python" -m pip install --disable-pip-version-check "$wanted" \
      --extra-index-url https://download.pytorch.org/whl/cpu ||
    complain "$wanted could not be installed: check the network and pip's configuration (pip config list)."
}

# Nodes need podman 4, which has netavark.
check_podman() {
  local version
  version=$(podman --version 2>/dev/null | grep -o '[0-9][0-9.]*' | head -n 1)
  [ "${version%%.*}" -ge 4 ] 2>/dev/null || complain "local nodes need podman 4 or newer, and this machine has ${version:-none}."
}

prepare_machine_for_nodes() {
  as_root true || complain "sudo does not let $(id -un) become root: run this as root."
  [ "$(uname -s)" = Linux ] || complain "local nodes need Linux: run this on one, or use -i with an inventory of your own hosts."
  case $(uname -m) in x86_64 | aarch64) ;; *) complain "local nodes need x86_64 or aarch64, and this machine is $(uname -m)." ;; esac
  install_packages
  check_podman
}

prepare_python() {
  install_packages python
  make_venv "$1"
}
