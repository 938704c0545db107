"""The grid side: promises, proof of delivery, cost and carbon, swings, power trees."""
