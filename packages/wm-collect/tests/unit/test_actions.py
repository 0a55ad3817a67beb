import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect.actions import ContinuousActions, DiscreteActions

BOUND = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
AGENT_ACTION = st.floats(allow_nan=False, allow_subnormal=False, width=32)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(bounds=st.tuples(BOUND, BOUND), action=AGENT_ACTION)
def test_mapped_action_never_leaves_the_box(bounds: tuple[float, float], action: float) -> None:
    low, high = sorted(bounds)
    mapped = ContinuousActions.from_box(low, high, (1,)).from_agent(jnp.array([action]))
    assert np.float32(low) <= mapped[0] <= np.float32(high)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(bounds=st.tuples(BOUND, BOUND), action=st.floats(-1, 1, width=32, allow_subnormal=False))
def test_mapping_is_the_affine_one(bounds: tuple[float, float], action: float) -> None:
    low, high = sorted(bounds)
    mapped = ContinuousActions.from_box(low, high, (1,)).from_agent(jnp.array([action]))
    expected = (high + low) / 2 + (high - low) / 2 * action
    tolerance = 4 * np.finfo(np.float32).eps * max(abs(low), abs(high))
    assert abs(float(mapped[0]) - expected) <= tolerance


@settings(max_examples=30, deadline=None, derandomize=True)
@given(action=AGENT_ACTION)
def test_unit_box_is_exactly_the_clip(action: float) -> None:
    mapped = ContinuousActions.from_box(-1.0, 1.0, (1,)).from_agent(jnp.array([action]))
    assert mapped[0] == np.clip(np.float32(action), -1, 1)


def test_each_dimension_has_its_own_bounds() -> None:
    space = ContinuousActions.from_box(
        [-2.0, 0.0, -math.inf, 5.0], [2.0, 10.0, math.inf, 5.0], (4,)
    )
    np.testing.assert_array_equal(space.from_agent(jnp.array([1.0] * 4)), [2, 10, 1, 5])
    np.testing.assert_array_equal(space.from_agent(jnp.array([-9.0] * 4)), [-2, 0, -1, 5])
    np.testing.assert_array_equal(space.from_agent(jnp.array([0.0] * 4)), [0, 5, 0, 5])


def test_largest_float32_means_no_bound() -> None:
    largest = np.finfo(np.float32).max
    space = ContinuousActions.from_box(-largest, largest, (1,))
    assert (space.low, space.high) == ((-math.inf,), (math.inf,))
    assert space.from_agent(jnp.array([7.0]))[0] == 1.0


def test_one_sided_bound_must_contain_the_agents_range() -> None:
    space = ContinuousActions.from_box(-math.inf, 1.0, (1,))
    assert space.from_agent(jnp.array([7.0]))[0] == 1.0
    with pytest.raises(ValueError, match=r"dimension 0 .*\[0.0, inf\].* finite bound on both"):
        ContinuousActions.from_box(0.0, math.inf, (1,))


@pytest.mark.parametrize("bounds", [(1.0, -1.0), (math.nan, 1.0), (-1.0, math.nan)])
def test_impossible_bounds_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must not lie above its upper bound"):
        ContinuousActions.from_box(*bounds, (2,))


def test_nan_action_stays_nan() -> None:
    space = ContinuousActions.from_box([-2.0, -math.inf], [2.0, math.inf], (2,))
    assert np.isnan(space.from_agent(jnp.array([jnp.nan, jnp.nan]))).all()


def test_action_gets_the_shape_of_the_environment() -> None:
    assert ContinuousActions.from_box(-1.0, 1.0, ()).from_agent(jnp.zeros(1)).shape == ()
    assert ContinuousActions.from_box(-1.0, 1.0, (2, 3)).from_agent(jnp.zeros(6)).shape == (2, 3)


def test_continuous_action_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has the shape \(2,\), but \(3, 2\) was given"):
        ContinuousActions.from_box(-1.0, 1.0, (2,)).from_agent(jnp.zeros((3, 2)))


@pytest.mark.parametrize(("given_index", "taken"), [(-3, 0), (0, 0), (2, 2), (7, 2)])
def test_discrete_index_stays_inside_the_choices(given_index: int, taken: int) -> None:
    action = DiscreteActions(3).from_agent(jnp.array(given_index))
    assert action == taken and action.dtype == jnp.int32 and action.shape == ()


@pytest.mark.parametrize("action", [jnp.array(1.0), jnp.array([1])], ids=["float", "vector"])
def test_discrete_action_must_be_one_integer(action: jnp.ndarray) -> None:
    with pytest.raises(ValueError, match="one integer index"):
        DiscreteActions(3).from_agent(action)


def test_discrete_space_without_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one choice, but 0 was given"):
        DiscreteActions(0)
