"""How GPUs are now: sources that are polled again and again, and what is judged of what they report.

    source.read() -> Snapshot -> Monitor.step -> View -> a screen, a table, a recording

`snapshot` and `view` are what passes from one to the next; `source` is what every source is; `choose` picks one.
What is judged is judged by the functions that judge stored data.
"""
