"""The debugger in a terminal: training that a person holds, steps and looks into (`slipstream train … --ui debug`)."""
