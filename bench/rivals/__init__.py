"""What timerd is compared with: other designs, other libraries, and the floor below each."""
