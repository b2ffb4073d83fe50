"""Google TPUs for axcore: hardware, mesh rules, splash attention."""
