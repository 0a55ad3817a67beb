"""Mistakes in the formulas of DreamerV3, file by file from the shared packages up."""

from fault import Fault

_NUMERICS = "packages/wm-numerics/src/wm_numerics"
_COLLECT = "packages/wm-collect/src/wm_collect"
_DREAMER = "packages/wm-dreamer/src/wm_dreamer"
_NUMERICS_TESTS = "packages/wm-numerics/tests"
_COLLECT_TESTS = "packages/wm-collect/tests"
_TESTS = "packages/wm-dreamer/tests"

_CODING = f"{_NUMERICS_TESTS}/parity/test_dreamerv3_numerics_parity.py"
_FUNCTIONS = f"{_TESTS}/parity/test_numerics_parity.py"
_RETURNS = f"{_TESTS}/parity/test_returns_parity.py"
_OPTIMIZER = f"{_TESTS}/parity/test_optimizer_parity.py"
_SCHEDULE = f"{_TESTS}/parity/test_schedule_parity.py"
_POLICY = f"{_TESTS}/parity/test_policy_parity.py"
_REPLAY = f"{_COLLECT_TESTS}/parity/test_stream_replay_parity.py"
# One update of the world model alone, and whole updates.
_TRAIN = f"{_TESTS}/parity/test_train_parity.py"
_MODEL = f"{_TRAIN}::TestWorldModelAlone"
_UPDATE = f"{_TRAIN}::TestWholeUpdates"

_OF_NUMERICS = (
    Fault(
        name="return_percentiles_swapped",
        file=f"{_NUMERICS}/normalizers.py",
        before="jax.lax.stop_gradient(x), (self.low_percentile, self.high_percentile)",
        after="jax.lax.stop_gradient(x), (self.high_percentile, self.low_percentile)",
        why="the range of the returns is negative, so the scale is always the limit",
        tests=(_CODING,),
    ),
    Fault(
        name="moving_average_rate_complemented",
        file=f"{_NUMERICS}/normalizers.py",
        before="return (1 - rate) * old + rate * jnp.asarray(new, old.dtype)",
        after="return rate * old + (1 - rate) * jnp.asarray(new, old.dtype)",
        why="the average follows the newest batch instead of the last hundred",
        tests=(_CODING,),
    ),
    Fault(
        name="return_scale_without_limit",
        file=f"{_NUMERICS}/normalizers.py",
        before=(
            "return jnp.maximum(jnp.asarray(self.limit, state.low.dtype), state.high - state.low)"
        ),
        after="return state.high - state.low",
        why="small returns are blown up to the size of large ones",
        tests=(_CODING, _RETURNS),
    ),
    Fault(
        name="percentile_position_one_too_far",
        file=f"{_NUMERICS}/normalizers.py",
        before="position = qs / 100 * (x.size - 1)",
        after="position = qs / 100 * x.size",
        why="n elements have n − 1 gaps",
        tests=(_CODING,),
    ),
    Fault(
        name="kernel_variance_of_outscale_not_squared",
        file=f"{_NUMERICS}/initializers.py",
        before='variance_scaling(outscale**2, "fan_in", "truncated_normal")',
        after='variance_scaling(outscale, "fan_in", "truncated_normal")',
        why="the scale of an output layer is a factor on the deviation, not on the variance",
        tests=(f"{_NUMERICS_TESTS}/unit/test_initializers.py",),
    ),
    Fault(
        name="kernel_fan_average",
        file=f"{_NUMERICS}/initializers.py",
        before='"fan_in", "truncated_normal"',
        after='"fan_avg", "truncated_normal"',
        why="fan-in and fan-out are averaged, as in an earlier DreamerV3",
        tests=(_CODING,),
    ),
    Fault(
        name="bins_not_symexp",
        file=f"{_NUMERICS}/distributional.py",
        before="lower = -np.expm1(-points)",
        after="lower = -np.exp(-points)",
        why="bins are exp instead of exp − 1 of equally spaced points",
        tests=(_CODING,),
    ),
    Fault(
        name="two_hot_weights_swapped",
        file=f"{_NUMERICS}/distributional.py",
        before="distance = jnp.where(below, x - lower, upper - x)",
        after="distance = jnp.where(below, upper - x, x - lower)",
        why="the farther bin gets the larger weight",
        tests=(_CODING,),
    ),
    Fault(
        name="two_hot_target_not_clipped",
        file=f"{_NUMERICS}/distributional.py",
        before="x = jnp.clip(x, grid.bins[0], grid.bins[-1])[..., None]",
        after="x = x[..., None]",
        why="a target beyond the bins gets weights whose sum is not 1",
        tests=(_CODING,),
    ),
    Fault(
        name="symlog_without_sign",
        file=f"{_NUMERICS}/distributional.py",
        before="return jnp.sign(x) * jnp.log1p(jnp.abs(x))",
        after="return jnp.log1p(jnp.abs(x))",
        why="negative observations become positive",
        tests=(_CODING,),
    ),
    Fault(
        name="rms_norm_with_default_eps",
        file=f"{_NUMERICS}/blocks.py",
        before="return nn.RMSNorm(epsilon=eps, name=name)",
        after="return nn.RMSNorm(name=name)",
        why="flax's 1e-6 instead of 1e-4",
        tests=(_CODING,),
    ),
    Fault(
        name="activation_before_norm",
        file=f"{_NUMERICS}/blocks.py",
        before='return module._act(getattr(module, f"norm_{layer}")(h))',
        after='return getattr(module, f"norm_{layer}")(module._act(h))',
        why="norm and activation are in the wrong order in every network",
        tests=(_MODEL,),
    ),
    Fault(
        name="kernel_gradient_only_without_input_gradient",
        file=f"{_NUMERICS}/blocks.py",
        before="    if not isinstance(kernel_tangent, SymbolicZero):",
        after="    elif not isinstance(kernel_tangent, SymbolicZero):",
        why="kernels learn only in layers whose input is data",
        tests=(f"{_MODEL}::test_gradients",),
    ),
)

_OF_THE_MODEL = (
    Fault(
        name="unimix_forgotten",
        file=f"{_DREAMER}/latents.py",
        before="probs = (1 - unimix) * jax.nn.softmax(logits) + unimix / logits.shape[-1]",
        after="probs = jax.nn.softmax(logits)",
        why="no class keeps a smallest probability",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="unimix_not_divided_by_the_classes",
        file=f"{_DREAMER}/latents.py",
        before="+ unimix / logits.shape[-1]",
        after="+ unimix",
        why="the uniform distribution of the mixture has a sum of C",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="straight_through_forgotten",
        file=f"{_DREAMER}/latents.py",
        before="return one_hot + (probs - jax.lax.stop_gradient(probs)), classes",
        after="return one_hot, classes",
        why="no gradient flows through the latents into the encoder",
        tests=(f"{_MODEL}::test_gradients",),
    ),
    Fault(
        name="classes_drawn_from_reversed_sums",
        file=f"{_DREAMER}/latents.py",
        before="ones = np.triu(np.ones((n_classes, n_classes), np.float32))",
        after="ones = np.tril(np.ones((n_classes, n_classes), np.float32))",
        why="probabilities are added up from the last class on",
        tests=(f"{_TESTS}/unit/test_latents.py",),
    ),
    Fault(
        name="entropy_without_minus",
        file=f"{_DREAMER}/latents.py",
        before="return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)",
        after="return jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)",
        why="the policy is rewarded for being sure",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="kl_the_other_way_round",
        file=f"{_DREAMER}/latents.py",
        before="jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))",
        after="jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=(-2, -1))",
        why="KL of the prior to the posterior",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="kl_mean_over_latents",
        file=f"{_DREAMER}/latents.py",
        before="jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))",
        after="jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1), axis=-1)",
        why="the mean over latents instead of their sum, which the free nats never let through",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="encoder_without_symlog",
        file=f"{_DREAMER}/networks.py",
        before="return apply(encoder(config), params, symlog(obs))",
        after="return apply(encoder(config), params, obs)",
        why="observations enter in raw units",
        tests=(_POLICY,),
    ),
    Fault(
        name="decoder_output_at_full_scale",
        file=f"{_DREAMER}/networks.py",
        before="DECODER_OUTSCALE = 0.1",
        after="DECODER_OUTSCALE = 1.0",
        why="the scale of a later version",
        tests=(f"{_TESTS}/unit/test_networks.py",),
    ),
    Fault(
        name="reward_head_starts_at_random",
        file=f"{_DREAMER}/networks.py",
        before="return _mlp(config.units, config.rew_layers, config.bins, 0.0)",
        after="return _mlp(config.units, config.rew_layers, config.bins)",
        why="first rewards are not 0",
        tests=(f"{_TESTS}/unit/test_networks.py",),
    ),
    Fault(
        name="rssm_norm_eps_of_other_networks",
        file=f"{_DREAMER}/rssm.py",
        before="NORM_EPS = 1e-4",
        after="NORM_EPS = 1e-6",
        why="a common default instead of 1e-4",
        tests=(_FUNCTIONS, _POLICY),
    ),
    Fault(
        name="update_gate_starts_open",
        file=f"{_DREAMER}/rssm.py",
        before="UPDATE_BIAS = -1.0",
        after="UPDATE_BIAS = 1.0",
        why="sign of the bias of the update gate",
        tests=(_POLICY,),
    ),
    Fault(
        name="update_gate_keeps_the_candidate_out",
        file=f"{_DREAMER}/rssm.py",
        before="return update * candidate + (1 - update) * deter",
        after="return (1 - update) * candidate + update * deter",
        why="the convention of other GRUs",
        tests=(_POLICY,),
    ),
    Fault(
        name="reset_gate_after_tanh",
        file=f"{_DREAMER}/rssm.py",
        before="candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)",
        after="candidate = jax.nn.sigmoid(reset) * jnp.tanh(candidate)",
        why="the reset gate scales the candidate, not what enters it",
        tests=(_POLICY,),
    ),
    Fault(
        name="gates_in_another_order",
        file=f"{_DREAMER}/rssm.py",
        before="reset, candidate, update = jnp.split(gates, 3, axis=-1)",
        after="reset, update, candidate = jnp.split(gates, 3, axis=-1)",
        why="the order of other GRUs",
        tests=(_POLICY,),
    ),
    Fault(
        name="core_norm_of_each_block",
        file=f"{_DREAMER}/rssm.py",
        before="core.scale, axes=(0, 2))",
        after="core.scale, axes=(2,))",
        why="the norm is over all units, not over those of a block",
        tests=(_POLICY,),
    ),
    Fault(
        name="blocks_of_strided_units",
        file=f"{_DREAMER}/rssm.py",
        before="return jnp.swapaxes(rows.reshape(rows.shape[0], n_blocks, -1), 0, 1)",
        after="return jnp.moveaxis(rows.reshape(rows.shape[0], -1, n_blocks), 2, 0)",
        why="a block holds every G-th unit instead of neighbours",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="action_not_bounded",
        file=f"{_DREAMER}/rssm.py",
        before="return action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))",
        after="return action",
        why="raw samples beyond the box enter the model",
        tests=(_POLICY, f"{_MODEL}::test_networks"),
    ),
    Fault(
        name="previous_action_kept_at_a_reset_while_acting",
        file=f"{_DREAMER}/rssm.py",
        before="deter = core_step(params, Core.of(params), state, prev_action * keep)",
        after="deter = core_step(params, Core.of(params), state, prev_action)",
        why="the last action of an episode enters the first state of the next",
        tests=(_POLICY,),
    ),
    Fault(
        name="previous_action_kept_at_a_reset_in_training",
        file=f"{_DREAMER}/observe_sequence.py",
        before="flat_rows(bounded_action(prev_action * keep))",
        after="flat_rows(bounded_action(prev_action))",
        why="the last action of an episode enters the first state of the next",
        tests=(f"{_UPDATE}::test_networks[train_discrete-wm/deter]",),
    ),
    Fault(
        name="blocks_not_masked_at_a_reset",
        file=f"{_DREAMER}/observe_sequence.py",
        before="state.deter * keep, state.stoch * keep, blocks * keep[None]",
        after="state.deter * keep, state.stoch * keep, blocks",
        why="of the two layouts of the carried state one keeps the last episode",
        tests=(f"{_MODEL}::test_networks",),
    ),
    Fault(
        name="latents_not_masked_at_a_reset",
        file=f"{_DREAMER}/rssm.py",
        before="state = RSSMState(state.deter * keep, state.stoch * keep)",
        after="state = RSSMState(state.deter * keep, state.stoch)",
        why="latents of the last episode enter the first state of the next",
        tests=(_POLICY,),
    ),
    Fault(
        name="posterior_reads_the_previous_state",
        file=f"{_DREAMER}/observe_sequence.py",
        before="posterior = rms_silu(next_deter @ weights.posterior",
        after="posterior = rms_silu(deter @ weights.posterior",
        why="the posterior of a row is given the state before it",
        tests=(f"{_MODEL}::test_networks",),
    ),
    Fault(
        name="prior_with_one_hidden_layer",
        file=f"{_DREAMER}/rssm.py",
        before=(
            'return affine(params["prior_logits"], hidden_layer(params["prior_hidden_1"], hidden))'
        ),
        after='return affine(params["prior_logits"], hidden)',
        why="the prior has two hidden layers, the posterior one",
        tests=(f"{_MODEL}::test_networks",),
    ),
    Fault(
        name="gradient_of_the_posterior_with_previous_states",
        file=f"{_DREAMER}/observe_sequence.py",
        before="posterior=flat_rows(deter).T @ flat_rows(additive.posterior)",
        after="posterior=flat_rows(inputs.deter).T @ flat_rows(additive.posterior)",
        why="the hand-written backward pass takes the state before the row",
        tests=(f"{_MODEL}::test_gradients",),
    ),
    Fault(
        name="gradient_of_a_bias_is_a_mean",
        file=f"{_DREAMER}/observe_sequence.py",
        before='{"kernel": flat_rows(x).T @ rows, "bias": jnp.sum(rows, axis=0)}',
        after='{"kernel": flat_rows(x).T @ rows, "bias": jnp.mean(rows, axis=0)}',
        why="the hand-written backward pass divides by the rows",
        tests=(f"{_MODEL}::test_gradients",),
    ),
    Fault(
        name="discount_from_another_horizon",
        file=f"{_DREAMER}/config.py",
        before="return 1.0 - 1.0 / self.return_horizon",
        after="return self.return_horizon / (self.return_horizon + 1.0)",
        why="γ = 1 − 1/334 for a horizon of 333",
        tests=(_RETURNS,),
    ),
)

_OF_THE_BEHAVIOR = (
    Fault(
        name="raw_deviation_not_shifted",
        file=f"{_DREAMER}/action_distributions.py",
        before='spread = jax.nn.sigmoid(outputs["std"] + STD_SHIFT)',
        after='spread = jax.nn.sigmoid(outputs["std"])',
        why="the policy starts with half of its deviation",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="deviation_reaches_beyond_its_largest",
        file=f"{_DREAMER}/action_distributions.py",
        before="std=(config.maxstd - config.minstd) * spread + config.minstd",
        after="std=config.maxstd * spread + config.minstd",
        why="the deviation ends at maxstd + minstd",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="mean_action_not_squashed",
        file=f"{_DREAMER}/action_distributions.py",
        before='mean=jnp.tanh(outputs["mean"])',
        after='mean=outputs["mean"]',
        why="the mean may lie outside the action box",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="entropy_of_a_normal_without_one_half",
        file=f"{_DREAMER}/action_distributions.py",
        before="return jnp.sum(0.5 + 0.5 * math.log(2 * math.pi) + jnp.log(self.std), axis=-1)",
        after="return jnp.sum(0.5 * math.log(2 * math.pi) + jnp.log(self.std), axis=-1)",
        why="½ ln 2πe became ½ ln 2π",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="log_density_mean_over_dimensions",
        file=f"{_DREAMER}/action_distributions.py",
        before="return jnp.sum(log_density, axis=-1)",
        after="return jnp.mean(log_density, axis=-1)",
        why="the dimensions of an action are independent: their log-densities add up",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="discrete_actions_without_unimix",
        file=f"{_DREAMER}/action_distributions.py",
        before='latents.mix_uniform(outputs["logits"], config.actor_unimix)',
        after='latents.mix_uniform(outputs["logits"], 0.0)',
        why="as in a later version",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="lambda_complemented",
        file=f"{_DREAMER}/returns.py",
        before="now = r + c * ((1 - lam) * v + lam * later)",
        after="now = r + c * (lam * v + (1 - lam) * later)",
        why="returns are nearly one-step",
        tests=(_RETURNS,),
    ),
    Fault(
        name="replayed_rewards_one_row_early",
        file=f"{_DREAMER}/returns.py",
        before="xs = (reward[1:], live[1:], cont[1:], bootstrap[1:])",
        after="xs = (reward[:-1], live[1:], cont[1:], bootstrap[1:])",
        why="the reward of a row is what was received on entering it",
        tests=(_RETURNS,),
    ),
    Fault(
        name="replayed_returns_without_discount",
        file=f"{_DREAMER}/returns.py",
        before="live = gamma * (1 - is_terminal.astype(jnp.float32))",
        after="live = 1 - is_terminal.astype(jnp.float32)",
        why="the flags of data hold no discount, as predicted continuations do",
        tests=(_RETURNS,),
    ),
    Fault(
        name="time_limit_ends_replayed_returns",
        file=f"{_DREAMER}/returns.py",
        before="live = gamma * (1 - is_terminal.astype(jnp.float32))",
        after="live = gamma * (1 - is_last.astype(jnp.float32))",
        why="a truncated episode looks like a terminated one",
        tests=(_RETURNS,),
    ),
    Fault(
        name="replayed_returns_cross_a_time_limit",
        file=f"{_DREAMER}/returns.py",
        before="cont = lam * (1 - is_last.astype(jnp.float32))",
        after="cont = lam * (1 - is_terminal.astype(jnp.float32))",
        why="the return of a truncated episode goes on in the next episode",
        tests=(f"{_TESTS}/unit/test_returns.py",),
    ),
    Fault(
        name="replayed_returns_end_with_zero",
        file=f"{_DREAMER}/returns.py",
        before="jax.lax.scan(step, bootstrap[-1], xs, reverse=True)",
        after="jax.lax.scan(step, jnp.zeros_like(bootstrap[-1]), xs, reverse=True)",
        why="the last row is not bootstrapped",
        tests=(_RETURNS,),
    ),
    Fault(
        name="features_of_the_policy_swapped",
        file=f"{_DREAMER}/policy.py",
        before="features = jnp.concatenate([observed.deter, observed.stoch], axis=-1)",
        after="features = jnp.concatenate([observed.stoch, observed.deter], axis=-1)",
        why="heads read the deterministic state first",
        tests=(_POLICY,),
    ),
    Fault(
        name="action_before_last_is_carried",
        file=f"{_DREAMER}/policy.py",
        before="PolicyCarry(RSSMState(observed.deter, observed.stoch), action)",
        after="PolicyCarry(RSSMState(observed.deter, observed.stoch), carry.action)",
        why="the state of a row is made with the action before the last one",
        tests=(_POLICY,),
    ),
    Fault(
        name="imagined_actions_not_bounded",
        file=f"{_DREAMER}/imagination.py",
        before='hidden_layer(rssm["action_in"], bounded_action(action))',
        after='hidden_layer(rssm["action_in"], action)',
        why="raw samples beyond the box enter imagination, but not the model's training",
        tests=(f"{_UPDATE}::test_imagined_states",),
    ),
    Fault(
        name="imagined_prior_without_unimix",
        file=f"{_DREAMER}/imagination.py",
        before="sample_classes(mix_uniform(logits, config.unimix), prior_noise)",
        after="sample_classes(mix_uniform(logits, 0.0), prior_noise)",
        why="imagined latents are drawn from another distribution than the one that is trained",
        tests=(f"{_TESTS}/unit/test_imagination.py",),
    ),
    Fault(
        name="imagined_values_of_the_next_state",
        file=f"{_DREAMER}/imagination.py",
        before='"critic": read.heads["critic"],',
        after='"critic": new.heads["critic"],',
        why="the critic is one state ahead of the actor",
        tests=(f"{_UPDATE}::test_imagined_rewards_continuations_and_values",),
    ),
    Fault(
        name="gradients_of_heads_with_features_swapped",
        file=f"{_DREAMER}/imagination.py",
        before="kernels = jnp.concatenate([columns @ deter, columns @ stoch], axis=1).T",
        after="kernels = jnp.concatenate([columns @ stoch, columns @ deter], axis=1).T",
        why="the rows of a kernel get the gradients of others",
        tests=(f"{_UPDATE}::test_gradients",),
    ),
)

_OF_THE_LOSSES = (
    Fault(
        name="reconstruction_of_raw_observations",
        file=f"{_DREAMER}/losses.py",
        before="squared = jnp.square(model.obs - symlog(flat_rows(data.obs)))",
        after="squared = jnp.square(model.obs - flat_rows(data.obs))",
        why="the decoder predicts symlog observations",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="reconstruction_without_tolerance",
        file=f"{_DREAMER}/losses.py",
        before="squared = jnp.where(squared < RECONSTRUCTION_TOLERANCE, 0.0, squared)\n    ",
        after="",
        why="squared errors below 1e-8 count",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="reconstruction_mean_over_dimensions",
        file=f"{_DREAMER}/losses.py",
        before="jnp.sum(squared, axis=-1)",
        after="jnp.mean(squared, axis=-1)",
        why="the term shrinks with the width of the observation",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="continue_label_without_discount",
        file=f"{_DREAMER}/losses.py",
        before="alive = config.gamma * (1 - data.is_terminal.reshape(-1).astype(jnp.float32))",
        after="alive = 1 - data.is_terminal.reshape(-1).astype(jnp.float32)",
        why="imagined returns are not discounted",
        tests=(f"{_MODEL}::test_reconstruction_and_continue_terms",),
    ),
    Fault(
        name="continue_logit_negated",
        file=f"{_DREAMER}/losses.py",
        before="alive * jax.nn.softplus(-model.cont) + (1 - alive) * jax.nn.softplus(model.cont)",
        after="alive * jax.nn.softplus(model.cont) + (1 - alive) * jax.nn.softplus(-model.cont)",
        why="the head learns the probability of an end",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="free_nats_of_the_mean",
        file=f"{_DREAMER}/losses.py",
        before=("jnp.maximum(latents.kl_divergence(sg(posterior), model.prior), config.free_nats)"),
        after=(
            "jnp.zeros(len(posterior)) + jnp.maximum(jnp.mean(\n"
            "            latents.kl_divergence(sg(posterior), model.prior)), config.free_nats)"
        ),
        why="the floor is below the mean of a batch instead of below each row",
        tests=(f"{_MODEL}::test_kl_terms",),
    ),
    Fault(
        name="representation_loss_without_free_nats",
        file=f"{_DREAMER}/losses.py",
        before=("jnp.maximum(latents.kl_divergence(posterior, sg(model.prior)), config.free_nats)"),
        after="latents.kl_divergence(posterior, sg(model.prior))",
        why="the posterior is pulled to the prior until nothing is left",
        tests=(f"{_MODEL}::test_kl_terms",),
    ),
    Fault(
        name="dynamics_loss_trains_the_posterior",
        file=f"{_DREAMER}/losses.py",
        before="latents.kl_divergence(sg(posterior), model.prior)",
        after="latents.kl_divergence(posterior, sg(model.prior))",
        why="the stop-gradient is on the wrong side",
        tests=(f"{_MODEL}::test_gradients",),
    ),
    Fault(
        name="representation_loss_trains_the_prior_too",
        file=f"{_DREAMER}/losses.py",
        before="latents.kl_divergence(posterior, sg(model.prior))",
        after="latents.kl_divergence(posterior, model.prior)",
        why="a stop-gradient is missing",
        tests=(f"{_MODEL}::test_gradients",),
    ),
    Fault(
        name="discount_applied_twice",
        file=f"{_DREAMER}/losses.py",
        before="returns=lambda_return(reward, cont, value[1:], value[-1], config.lam)",
        after=(
            "returns=lambda_return(reward, config.gamma * cont, value[1:], value[-1], config.lam)"
        ),
        why="predicted continuations hold the discount already",
        tests=(f"{_UPDATE}::test_returns",),
    ),
    Fault(
        name="returns_of_the_values_of_the_same_state",
        file=f"{_DREAMER}/losses.py",
        before="lambda_return(reward, cont, value[1:], value[-1], config.lam)",
        after="lambda_return(reward, cont, value[:-1], value[-1], config.lam)",
        why="the value of the state the reward leads to is one step later",
        tests=(f"{_UPDATE}::test_returns",),
    ),
    Fault(
        name="advantage_over_the_slow_critic",
        file=f"{_DREAMER}/losses.py",
        before="advantage = (behavior.returns - behavior.value[:-1]) / normalizer.scale(retnorm)",
        after="advantage = (behavior.returns - behavior.slow_value) / normalizer.scale(retnorm)",
        why="the baseline is the critic's value; the slow critic only regularises",
        tests=(f"{_UPDATE}::test_advantages_and_normalised_returns",),
    ),
    Fault(
        name="normaliser_read_before_its_update",
        file=f"{_DREAMER}/losses.py",
        before=(
            "    retnorm = normalizer.update(retnorm, behavior.returns)\n"
            "    advantage = (behavior.returns - behavior.value[:-1]) / normalizer.scale(retnorm)\n"
        ),
        after=(
            "    advantage = (behavior.returns - behavior.value[:-1]) / normalizer.scale(retnorm)\n"
            "    retnorm = normalizer.update(retnorm, behavior.returns)\n"
        ),
        why="advantages are divided by the range of earlier batches",
        tests=(f"{_UPDATE}::test_advantages_and_normalised_returns",),
    ),
    Fault(
        name="entropy_is_punished",
        file=f"{_DREAMER}/losses.py",
        before="actor += config.actent * behavior.policy.entropy()",
        after="actor -= config.actent * behavior.policy.entropy()",
        why="sign of the entropy bonus",
        tests=(f"{_UPDATE}::test_actor_term", f"{_UPDATE}::test_gradients"),
    ),
    Fault(
        name="values_pass_gradients_to_the_critic",
        file=f"{_DREAMER}/losses.py",
        before="values = steps(two_hot.mean(sg(critic_logits)))",
        after="values = steps(two_hot.mean(critic_logits))",
        why="the actor's loss trains the critic through the advantage",
        tests=(f"{_UPDATE}::test_gradients",),
    ),
    Fault(
        name="model_heads_learn_from_imagination",
        file=f"{_DREAMER}/losses.py",
        before="frozen = sg(params)",
        after="frozen = params",
        why="the actor's loss trains the reward and continue heads through the returns",
        tests=(f"{_UPDATE}::test_gradients",),
    ),
    Fault(
        name="weights_one_state_late",
        file=f"{_DREAMER}/losses.py",
        before="weight=jnp.cumprod(jnp.concatenate([start_continues[None], cont[:-1]]), axis=0)",
        after="weight=start_continues[None] * jnp.cumprod(cont, axis=0)",
        why="a state is weighted with its own end",
        tests=(f"{_UPDATE}::test_rewards_and_values_as_the_loss_sees_them",),
    ),
    Fault(
        name="weights_multiplied_over_starts",
        file=f"{_DREAMER}/losses.py",
        before="cont[:-1]]), axis=0)",
        after="cont[:-1]]), axis=1)",
        why="continuations are multiplied along the batch instead of along time",
        tests=(f"{_UPDATE}::test_rewards_and_values_as_the_loss_sees_them",),
    ),
    Fault(
        name="truncated_starts_do_not_count",
        file=f"{_DREAMER}/losses.py",
        before="continues = 1 - data.is_terminal.reshape(-1).astype(jnp.float32)",
        after="continues = 1 - data.is_last.reshape(-1).astype(jnp.float32)",
        why="nothing is imagined from rows at a time limit",
        tests=(f"{_UPDATE}::test_rewards_and_values_as_the_loss_sees_them",),
    ),
    Fault(
        name="replayed_critic_masked_one_row_late",
        file=f"{_DREAMER}/losses.py",
        before="data.is_last[:-1], 0.0, replay_critic",
        after="data.is_last[1:], 0.0, replay_critic",
        why="the transition out of a last row is masked, not the one into it",
        tests=(f"{_UPDATE}::test_replayed_critic_term",),
    ),
    Fault(
        name="replayed_returns_bootstrap_from_values",
        file=f"{_DREAMER}/losses.py",
        before="behavior.returns[0].reshape(data.reward.shape)",
        after="behavior.value[0].reshape(data.reward.shape)",
        why="the critic's value of a row instead of the imagined return from it",
        tests=(f"{_UPDATE}::test_replayed_returns",),
    ),
    Fault(
        name="replayed_critic_does_not_train_the_model",
        file=f"{_DREAMER}/losses.py",
        before='logits = networks.apply(critic, params["critic"], model.features)',
        after=(
            'logits = networks.apply(\n        critic, params["critic"], '
            "jax.lax.stop_gradient(model.features)\n    )"
        ),
        why="the gradient of the features is stopped, as in imagination",
        tests=(f"{_UPDATE}::test_gradients",),
    ),
    Fault(
        name="critic_not_held_to_the_slow_critic",
        file=f"{_DREAMER}/losses.py",
        before="return config.two_hot.loss(logits, target) + config.slowreg * to_slow",
        after="return config.two_hot.loss(logits, target)",
        why="the regulariser is missing",
        tests=(f"{_UPDATE}::test_critic_term",),
    ),
    Fault(
        name="actions_one_row_late",
        file=f"{_DREAMER}/losses.py",
        before="prev_action=swap(action_vector(batch.action[:, :-1], config=config))",
        after="prev_action=swap(action_vector(batch.action[:, 1:], config=config))",
        why="a state is made with the action chosen in it",
        tests=(f"{_MODEL}::test_given_actions_and_forced_latents_are_exact",),
    ),
    Fault(
        name="forced_reset_on_the_first_trained_row",
        file=f"{_DREAMER}/losses.py",
        before="is_first=swap(batch.is_first[:, 1:])",
        after="is_first=swap(batch.is_first[:, :-1])",
        why="the context's latents are thrown away, and resets come one row late",
        tests=(f"{_MODEL}::test_networks",),
    ),
    Fault(
        name="slow_critic_follows_the_critic_before_the_step",
        file=f"{_DREAMER}/update.py",
        before='slow_critic=slow_update(state.slow_critic, params["critic"], state.updates,',
        after='slow_critic=slow_update(state.slow_critic, state.params["critic"], state.updates,',
        why="the slow critic is one update late",
        tests=(f"{_UPDATE}::test_slow_critic_after_every_call",),
    ),
    Fault(
        name="slow_critic_copied_at_the_second_update",
        file=f"{_DREAMER}/update.py",
        before="mix = jnp.where(updates == 0, 1.0, config.slow_rate)",
        after="mix = jnp.where(updates == 1, 1.0, config.slow_rate)",
        why="updates made before the call are counted, not those after it",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="slow_rate_complemented",
        file=f"{_DREAMER}/update.py",
        before="lambda old, new: mix * new + (1 - mix) * old, slow, critic",
        after="lambda old, new: (1 - mix) * new + mix * old, slow, critic",
        why="the slow critic keeps a fiftieth instead of moving by it",
        tests=(_FUNCTIONS,),
    ),
)

_OF_THE_OPTIMISER_AND_THE_CLOCK = (
    Fault(
        name="clip_allowance_added",
        file=f"{_DREAMER}/optimizer.py",
        before="allowed = clip * jnp.maximum(pmin, _norm(parameter))",
        after="allowed = clip * (pmin + _norm(parameter))",
        why="the smallest norm is a floor, not an addition",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="clip_by_root_mean_square",
        file=f"{_DREAMER}/optimizer.py",
        before="return jnp.sqrt(jnp.sum(jnp.square(x)))",
        after="return jnp.sqrt(jnp.mean(jnp.square(x)))",
        why="it cancels in the ratio, but not against the smallest norm",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="clipped_after_normalising",
        file=f"{_DREAMER}/optimizer.py",
        before=(
            "        adaptive_gradient_clip(agc, agc_pmin),\n"
            "        scale_by_laprop(beta1, beta2, eps),\n"
        ),
        after=(
            "        scale_by_laprop(beta1, beta2, eps),\n"
            "        adaptive_gradient_clip(agc, agc_pmin),\n"
        ),
        why="gradients are to be clipped, not steps",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="adam_instead_of_laprop",
        file=f"{_DREAMER}/optimizer.py",
        before=(
            "            return beta1 * mu + (1 - beta1) * "
            "(g / (jnp.sqrt(nu / nu_correction) + eps))\n"
            "\n"
            "        mu = jax.tree.map(averaged, updates, nu, state.mu)\n"
            "        d = jax.tree.map(lambda mu: mu / mu_correction, mu)\n"
        ),
        after=(
            "            return beta1 * mu + (1 - beta1) * g\n"
            "\n"
            "        mu = jax.tree.map(averaged, updates, nu, state.mu)\n"
            "        d = jax.tree.map(\n"
            "            lambda mu, nu: mu / mu_correction / "
            "(jnp.sqrt(nu / nu_correction) + eps),\n"
            "            mu,\n"
            "            nu,\n"
            "        )\n"
        ),
        why="gradients are averaged first and divided afterwards",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="eps_inside_the_root",
        file=f"{_DREAMER}/optimizer.py",
        before="(g / (jnp.sqrt(nu / nu_correction) + eps))",
        after="(g / jnp.sqrt(nu / nu_correction + eps))",
        why="gradients below 1e-10 are not normalised",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="second_moment_not_corrected",
        file=f"{_DREAMER}/optimizer.py",
        before="jnp.sqrt(nu / nu_correction) + eps",
        after="jnp.sqrt(nu) + eps",
        why="the first updates are thirty times as large",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="second_moment_decays_like_the_first",
        file=f"{_DREAMER}/optimizer.py",
        before="lambda g, nu: beta2 * nu + (1 - beta2) * (g * g)",
        after="lambda g, nu: beta1 * nu + (1 - beta1) * (g * g)",
        why="β1 instead of β2",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="warm_up_starts_at_one",
        file=f"{_DREAMER}/optimizer.py",
        before="factor = jnp.clip(count / warmup, 0.0, 1.0) if warmup else 1.0",
        after="factor = jnp.clip((count + 1) / warmup, 0.0, 1.0) if warmup else 1.0",
        why="the first update moves parameters",
        tests=(_OPTIMIZER,),
    ),
    Fault(
        name="latents_and_imagination_share_their_noise",
        file=f"{_DREAMER}/noise.py",
        before="prior=jax.random.uniform(prior, (*starts, config.stoch))",
        after="prior=jax.random.uniform(posterior, (*starts, config.stoch))",
        why="one key is used twice",
        tests=(f"{_TESTS}/unit/test_noise.py",),
    ),
    Fault(
        name="continuous_actions_from_uniform_noise",
        file=f"{_DREAMER}/noise.py",
        before="return jax.random.normal(key, (*shape, config.action_dim))",
        after="return jax.random.uniform(key, (*shape, config.action_dim))",
        why="actions lie on one side of the mean",
        tests=(f"{_TESTS}/unit/test_noise.py",),
    ),
    Fault(
        name="first_update_counts_the_context_row",
        file=f"{_DREAMER}/schedule.py",
        before="return self.batch_length * self.n_envs + self.batch_size",
        after="return (self.batch_length + 1) * self.n_envs + self.batch_size",
        why="the first window of L rows ends with row L − 1, counted from 0",
        tests=(_SCHEDULE,),
    ),
    Fault(
        name="no_update_at_the_first_transition",
        file=f"{_DREAMER}/schedule.py",
        before="return 1 + since_first if tick > self.first_update_tick else 0",
        after="return since_first if tick > self.first_update_tick else 0",
        why="the original's ratio answers 1 when it is first asked",
        tests=(_SCHEDULE,),
    ),
    Fault(
        name="updates_one_tick_early",
        file=f"{_DREAMER}/schedule.py",
        before="return jnp.where(tick > self.first_update_tick, 1 + since_first, 0)",
        after="return jnp.where(tick >= self.first_update_tick, 1 + since_first, 0)",
        why="counts are of the updates before a tick",
        tests=(_SCHEDULE,),
    ),
)

_OF_THE_REPLAY = (
    Fault(
        name="online_windows_start_with_row_zero",
        file=f"{_COLLECT}/replay/stream.py",
        before="start=jnp.where(online, 1 + length * (online_item // self.n_envs), start)",
        after="start=jnp.where(online, length * (online_item // self.n_envs), start)",
        why="the first online window begins with row 1 of a stream",
        tests=(_REPLAY,),
    ),
    Fault(
        name="newest_online_windows_first",
        file=f"{_COLLECT}/replay/stream.py",
        before="online_item = next_online + place",
        after="online_item = available - 1 - place",
        why="a stack instead of a queue",
        tests=(_REPLAY,),
    ),
    Fault(
        name="online_windows_one_tick_early",
        file=f"{_COLLECT}/replay/stream.py",
        before="available = self.n_envs * (tick // length)",
        after="available = self.n_envs * ((tick + 1) // length)",
        why="the last row of a window is not there yet",
        tests=(_REPLAY,),
    ),
    Fault(
        name="context_row_not_marked_first",
        file=f"{_COLLECT}/replay/stream.py",
        before="is_first = read_rows(state.is_first, index).at[:, 0].set(True)",
        after="is_first = read_rows(state.is_first, index)",
        why="row 0 of a window keeps its own flag",
        tests=(_REPLAY,),
    ),
    Fault(
        name="broken_off_episodes_not_marked_last",
        file=f"{_COLLECT}/replay/stream.py",
        before="is_last=is_last.at[:, :-1].set(is_last[:, :-1] | is_first[:, 1:])",
        after="is_last=is_last",
        why="returns run from the end of an episode that was cut off into the next one",
        tests=(f"{_COLLECT_TESTS}/unit/test_stream_replay.py",),
    ),
    Fault(
        name="context_latents_of_the_first_trained_row",
        file=f"{_COLLECT}/replay/stream.py",
        before="context_deter=read_rows(state.deter, index[:, 0])",
        after="context_deter=read_rows(state.deter, index[:, 1])",
        why="stored latents are those after a row, so those of row 0 are carried into row 1",
        tests=(_REPLAY,),
    ),
    Fault(
        name="latents_written_back_one_row_early",
        file=f"{_COLLECT}/replay/stream.py",
        before="row = draw.start[:, None] + jnp.arange(1, T + 1, dtype=jnp.int32)[None, :]",
        after="row = draw.start[:, None] + jnp.arange(T, dtype=jnp.int32)[None, :]",
        why="the context row is overwritten and the last row is not",
        tests=(_REPLAY,),
    ),
    Fault(
        name="earlier_windows_win_the_write_back",
        file=f"{_COLLECT}/replay/stream.py",
        before="later = same_env & (place[:, None] < place[None, :])",
        after="later = same_env & (place[:, None] > place[None, :])",
        why="where windows overlap, the later one of the batch is to stay",
        tests=(_REPLAY,),
    ),
    Fault(
        name="one_item_too_many",
        file=f"{_COLLECT}/replay/stream.py",
        before="jnp.asarray(tick, jnp.int32) + 1, self.capacity) - self.batch_length",
        after="jnp.asarray(tick, jnp.int32) + 2, self.capacity) - self.batch_length",
        why="the newest window has a row that is not there yet",
        tests=(_REPLAY,),
    ),
    Fault(
        name="items_numbered_through_environments",
        file=f"{_COLLECT}/replay/stream.py",
        before="return index % self.n_envs, self._oldest_row(tick) + index // self.n_envs",
        after=(
            "per_env = jnp.maximum(self.n_items(tick) // self.n_envs, 1)\n"
            "        return index // per_env, self._oldest_row(tick) + index % per_env"
        ),
        why="indices are to count all environments of a tick before the next tick",
        tests=(_REPLAY,),
    ),
)

FAULTS = (
    *_OF_NUMERICS,
    *_OF_THE_MODEL,
    *_OF_THE_BEHAVIOR,
    *_OF_THE_LOSSES,
    *_OF_THE_OPTIMISER_AND_THE_CLOCK,
    *_OF_THE_REPLAY,
)
