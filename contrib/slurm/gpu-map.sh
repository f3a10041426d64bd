#!/bin/sh
# Writes down which GPUs a job holds: one line when it starts on a node, one when it has ended there.
#
#   slurm.conf:   Prolog=/etc/slurm/gpu-map.sh
#                 Epilog=/etc/slurm/gpu-map.sh
#                 PrologFlags=Alloc
#
# Read by `tachograph collect` ([[sources]] source = "allocation-map") and `tachograph ingest allocation-map`.
# A job never fails nor waits for it: it ends with 0 after at most five seconds, whatever happens to the folder.
# Called twice for the same start of a job, it writes once.

exec </dev/null >/dev/null 2>&1 # slurmd waits until its pipe is closed
folder=${TACHOGRAPH_MAP_FOLDER:-/var/spool/tachograph/gpu-map} # local or shared, writable by slurmd: a file per node

case ${SLURM_SCRIPT_CONTEXT:-$0} in
*epilog*) event=epilog ;;
*) event=prolog ;;
esac

case $SLURM_JOB_ID in
'' | *[!0-9]*) exit 0 ;;
esac

node=${SLURMD_NODENAME:-$(hostname -s)}
node=${node%%.*}
case $node in
'' | *[!A-Za-z0-9_-]*) exit 0 ;;
esac

gpus=$SLURM_JOB_GPUS
[ -n "$gpus" ] || exit 0
case $CUDA_VISIBLE_DEVICES,$gpus in
*MIG-* | *[!0-9,]*MIG*) held=mig=$gpus ;; # numbers of slices are not those of GPUs
*) held=gpus=$gpus ;;
esac
case $held in
*[!A-Za-z0-9=,:/_.-]*) exit 0 ;; # one word, or the line could not be read
esac

now=$(date +%s.%3N)
case $now in
*[!0-9.]*) now=$(date +%s) ;; # a `date` that knows no fractions
esac
what="$event job=$SLURM_JOB_ID${SLURM_JOB_RESTART_COUNT:+ restart=$SLURM_JOB_RESTART_COUNT} node=$node"
line="$now $what $held${SLURM_CLUSTER_NAME:+ cluster=$SLURM_CLUSTER_NAME}"

write() {
    umask 022
    [ -d "$folder" ] || mkdir -p "$folder" || return
    file=$folder/$node.log
    case $event in
    prolog) [ -n "$SLURM_JOB_RESTART_COUNT" ] && grep -qF " $what " "$file" && return ;;
    # of a run that is requeued the epilog gets the count of the next run, whose epilog gets the same
    epilog) grep -F " job=$SLURM_JOB_ID " "$file" | tail -n 1 | grep -qF " $what " && return ;;
    esac
    printf '%s\n' "$line" >>"$file"
}

# shared storage may hang: then nothing waits for it
write &
writer=$!
trap : ALRM
(
    sleep 5
    kill -s ALRM $$
) &
guard=$!
wait "$writer"
kill "$guard"
exit 0
