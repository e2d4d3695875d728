#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program as two MPI ranks on two hosts that are network namespaces of this machine, joined by a virtual cable: all that the
# ranks send goes over TCP. Needs root (or the right to make namespaces), iproute2, util-linux and Open MPI; says what is missing with
# "skipped: " and exit status 77. usage: two_hosts.sh PROGRAM [ARGUMENT...]
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: two_hosts.sh PROGRAM [ARGUMENT...]" >&2; exit 2; }
skip() { echo "skipped: $1"; exit 77; }
for tool in ip unshare mpirun; do command -v $tool >/dev/null 2>&1 || skip "'$tool' is not installed (Debian: iproute2, util-linux, openmpi-bin)"; done

a=motet-a-$$ b=motet-b-$$ work=$(mktemp -d)
cleanup() { ip netns del "$a" 2>/dev/null || true; ip netns del "$b" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
ip netns add "$a" 2>/dev/null || skip "network namespaces are not allowed here"
ip netns add "$b"
ip -n "$a" link add cable type veth peer name cable netns "$b" 2>/dev/null || skip "virtual network cables are not allowed here"
ip -n "$a" address add 10.77.0.1/24 dev cable
ip -n "$b" address add 10.77.0.2/24 dev cable
for host in "$a" "$b"; do ip -n "$host" link set lo up; ip -n "$host" link set cable up; done

# What mpirun takes for ssh: HOST COMMAND..., here run in the other namespace under another host name.
cat >"$work/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c "hostname motet-b; \$*"
AGENT
chmod +x "$work/agent"
command=(mpirun --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24
         --mca oob_tcp_if_include 10.77.0.0/24 --mca orte_keep_fqdn_hostnames 1 --host 10.77.0.1:1,10.77.0.2:1 -n 2 "$@")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ip netns exec "$a" unshare --uts sh -c 'hostname motet-a; exec "$@"' sh "${command[@]}"
