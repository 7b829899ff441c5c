"""LeNet-5 in the Caffe variant used in the compression literature."""

from torch import nn


def lenet5(image_shape: tuple[int, int, int], num_outputs: int) -> nn.Sequential:
    """Return the 20-50-500 network for flat or shaped images.

    Two 5x5 convolutions with 2x2 pooling, then two dense layers; on 28x28 images the first dense
    layer has 800 inputs. ``image_shape`` is channels, height and width, both at least 16.
    """
    channels, height, width = image_shape
    pooled = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, image_shape),
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * pooled[0] * pooled[1], 500),
        nn.ReLU(),
        nn.Linear(500, num_outputs),
    )
