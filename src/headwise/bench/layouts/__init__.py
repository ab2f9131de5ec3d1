"""What `headwise bench` measures: one attention layer under several head layouts, side by side.

A layout is named (`specs`), counted from its sizes alone (`costs`), built (`runners`), checked against itself and a
plain implementation (`checks`), timed in turns (`timing`) and weighed in a process of its own (`memory`);
`headwise.bench.layouts.run` does all of it.
"""
