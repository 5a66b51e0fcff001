"""The purgatory study: the broker's purgatory alone under drawn requests, as an article on timing wheels measured it.

`point` runs one point of it in this process; `study` spreads a plan of points over Spark's executors, a task for each;
`figures` sums rows up and keeps them in files. The compiled modules are the harness: `driver` (threads and what they
measure), `workload` (what is drawn), `study_request` (a fake request, and what a design brings), `new_design` (the
purgatory of `kbroker._core` behind that), `deadline_queue` (what is to be completed). The design that the timing wheel
replaced is in `bench/purgatory`, for comparison there; nothing here knows it.
"""
