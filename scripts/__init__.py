"""The pipeline behind noxfile.py: one module per station, data flowing one way."""
