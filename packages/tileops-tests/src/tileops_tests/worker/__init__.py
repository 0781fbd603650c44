"""Scripts of the candidate's process, copied into its sandbox. Nothing here imports tileops_tests."""
