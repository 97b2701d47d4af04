"""What tests are made of: real servers, suites and clocks. Nothing that is shipped imports it."""
