#!/bin/sh
# Run a command that starts ranks, which write a JUnit file (--junitxml=FOLDER/NAME.xml). If it fails, run it once more.
# Tests that all ranks run in step cannot be tried again one by one, and now and then a launcher does not start: Open
# MPI's gives 213 while another test makes or removes network interfaces. The results of the first attempt are kept in
# FOLDER/first. tools/results.py reports what failed in it. In CI a launcher that hangs is ended after 12 minutes.
trap "exit 130" INT
for argument; do
    case $argument in --junitxml=*) report=${argument#--junitxml=} ;; esac
done
first=$(dirname "$report")/first
mkdir -p "$first"
rm -f "$first/$(basename "$report")"
: > "$report" # tools/results.py reports an empty file as a failure: the run ended without a report
${CI:+timeout --foreground --kill-after=20 720} "$@" && exit
mv "$report" "$first/"
: > "$report"
echo "$report: that was the first attempt; the second one begins"
exec ${CI:+timeout --foreground --kill-after=20 720} "$@"
