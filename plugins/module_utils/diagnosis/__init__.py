"""Finding out why a job failed: lines of logs of all hosts, in order of time, held against rules (rules.yml)."""
