"""The machine: nsys, clocks, facts for the doctor."""
