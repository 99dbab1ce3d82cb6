"""Laws of loss from points: fits and predictions. numpy and scipy; no runs, no torch."""
