"""How a measurement becomes an input: by constants that everybody knows.

Sites must agree on the scale of their inputs, and none may look at another's rows for it. The data set's published
description gives each measurement's range; all of them use the square root of the place within it, from -2 to 2.
"""

import numpy

RANGES = numpy.array(
    [
        [6.981, 28.11],  # mean radius
        [9.71, 39.28],  # mean texture
        [43.79, 188.5],  # mean perimeter
        [143.5, 2501.0],  # mean area
        [0.05263, 0.1634],  # mean smoothness
        [0.01938, 0.3454],  # mean compactness
        [0.0, 0.4268],  # mean concavity
        [0.0, 0.2012],  # mean concave points
        [0.106, 0.304],  # mean symmetry
        [0.04996, 0.09744],  # mean fractal dimension
        [0.1115, 2.873],  # radius error
        [0.3602, 4.885],  # texture error
        [0.757, 21.98],  # perimeter error
        [6.802, 542.2],  # area error
        [0.001713, 0.03113],  # smoothness error
        [0.002252, 0.1354],  # compactness error
        [0.0, 0.396],  # concavity error
        [0.0, 0.05279],  # concave points error
        [0.007882, 0.07895],  # symmetry error
        [0.0008948, 0.02984],  # fractal dimension error
        [7.93, 36.04],  # worst radius
        [12.02, 49.54],  # worst texture
        [50.41, 251.2],  # worst perimeter
        [185.2, 4254.0],  # worst area
        [0.07117, 0.2226],  # worst smoothness
        [0.02729, 1.058],  # worst compactness
        [0.0, 1.252],  # worst concavity
        [0.0, 0.291],  # worst concave points
        [0.1565, 0.6638],  # worst symmetry
        [0.05504, 0.2075],  # worst fractal dimension
    ]
)


def inputs(measured):
    """Inputs of rows of measurements."""
    least, most = RANGES[:, 0], RANGES[:, 1]
    return 4 * numpy.sqrt(numpy.clip((measured - least) / (most - least), 0, 1)) - 2


def load(path):
    """A site's rows: inputs, and whether malignant."""
    table = numpy.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return inputs(table[:, :30]), table[:, 30]
