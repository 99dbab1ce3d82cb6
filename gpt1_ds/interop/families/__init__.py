"""Models as transformers has them: one file per `model_type`."""
