"""AWS Trainium for axcore: hardware, mesh rules and kernels in NKI."""
