"""What it runs on: nsys, clocks, facts for the doctor."""
