"""What make_vectors.py runs: hooks, their options, parameters, worlds and bucket sizes."""

import dataclasses

WORLDS = (2, 3, 4)
STEPS = 6
FREE_STEPS = 40

# Matrices of every form, vectors and a tensor of one element.
MIXED = {
    "conv": (8, 4, 3, 3),
    "conv_bias": (8,),
    "tall": (64, 6),
    "scale": (1,),
    "wide": (5, 80),
    "square": (24, 24),
    "square_bias": (24,),
}
# Several equal shapes, apart from each other; "conv" is a matrix of that shape too.
EQUAL = {
    "first": (16, 20),
    "square": (24, 24),
    "second": (16, 20),
    "bias": (17,),
    "other_square": (24, 24),
    "conv": (16, 5, 2, 2),
    "third": (16, 20),
    "scale": (1,),
}
# Large enough for rank 8 at a compression rate of 2.
BROAD = {
    "first": (32, 40),
    "bias": (32,),
    "wide": (28, 56),
    "scale": (1,),
    "conv": (32, 10, 2, 2),
}
ONE_BUCKET = None
SEVERAL_BUCKETS = 2048


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    world: int
    hook: str  # as Gradwire names it
    options: dict  # of PowerSGDState, by its own names
    parameters: dict  # name -> shape, in the order of the model
    bucket_bytes: int | None = ONE_BUCKET  # a bucket is closed when it has that many bytes
    steps: int = STEPS

    def spec(self):
        """The form that HookSpec::Parse reads."""

        def text(value):
            return str(value).lower() if isinstance(value, bool) else str(value)

        return ",".join([self.hook, *(f"{key}={text(x)}" for key, x in self.options.items())])


def power_sgd(rank, start=2, **others):
    return {"matrix_approximation_rank": rank, "start_powerSGD_iter": start, **others}


NO_ERRORS = {"use_error_feedback": False}
COLD = {"warm_start": False}
EPSILON = {"orthogonalization_epsilon": 0.01}
STACKED = {"batch_tensors_with_same_shape": True}

# name, options, parameters, bucket size; each of them in every world.
POWER_SGD = (
    ("rank1", power_sgd(1), MIXED, ONE_BUCKET),
    ("rank1_epsilon", power_sgd(1, **EPSILON), MIXED, SEVERAL_BUCKETS),
    ("rank1_rate10", power_sgd(1, min_compression_rate=10), MIXED, SEVERAL_BUCKETS),
    ("rank1_no_errors_stacked", power_sgd(1, 3, **NO_ERRORS, **STACKED), EQUAL, SEVERAL_BUCKETS),
    ("rank2", power_sgd(2), MIXED, SEVERAL_BUCKETS),
    ("rank2_epsilon_stacked", power_sgd(2, 3, **EPSILON, **STACKED), EQUAL, ONE_BUCKET),
    ("rank2_cold", power_sgd(2, **COLD), EQUAL, SEVERAL_BUCKETS),
    ("rank3", power_sgd(3), MIXED, SEVERAL_BUCKETS),
    ("rank3_cold_stacked", power_sgd(3, **COLD, **STACKED), EQUAL, ONE_BUCKET),
    ("rank4_late", power_sgd(4, 4), EQUAL, SEVERAL_BUCKETS),
    ("rank4_stacked", power_sgd(4, **STACKED), EQUAL, SEVERAL_BUCKETS),
    (
        "rank4_rate05_cold_no_errors",
        power_sgd(4, min_compression_rate=0.5, **COLD, **NO_ERRORS),
        MIXED,
        ONE_BUCKET,
    ),
    ("rank8", power_sgd(8, 3), BROAD, SEVERAL_BUCKETS),
    ("rank8_rate05", power_sgd(8, min_compression_rate=0.5, random_seed=7), MIXED, SEVERAL_BUCKETS),
)
BATCHED = (
    (2, "rank1", power_sgd(1), MIXED, SEVERAL_BUCKETS),
    (3, "rank2_cold", power_sgd(2, 3, **COLD), EQUAL, ONE_BUCKET),
    (4, "rank4_no_errors", power_sgd(4, **NO_ERRORS, **EPSILON), BROAD, ONE_BUCKET),
)


def configurations():
    made = []
    for world in WORLDS:
        for hook in ("no", "fp16"):
            made.append(Configuration(f"{hook}_w{world}", world, hook, {}, MIXED, SEVERAL_BUCKETS))
        for name, options, parameters, size in POWER_SGD:
            made.append(
                Configuration(f"{name}_w{world}", world, "power_sgd", options, parameters, size)
            )
    # Allowed with neither errors nor warm start: compressed from the first step on.
    at_once = power_sgd(2, 0, **COLD, **NO_ERRORS)
    made.append(Configuration("rank2_at_once_w2", 2, "power_sgd", at_once, MIXED, SEVERAL_BUCKETS))
    for world, name, options, parameters, size in BATCHED:
        hook = "batched_power_sgd"
        made.append(
            Configuration(f"batched_{name}_w{world}", world, hook, options, parameters, size)
        )
    for rank in (1, 2, 4, 8):
        made.append(
            Configuration(
                f"free_rank{rank}_w2", 2, "power_sgd", power_sgd(rank), BROAD, steps=FREE_STEPS
            )
        )
    return made
