"""Mistakes in the formulas of TD-MPC2, file by file from the shared packages up."""

from fault import Fault

_NUMERICS = "packages/wm-numerics/src/wm_numerics"
_COLLECT = "packages/wm-collect/src/wm_collect"
_TDMPC2 = "packages/wm-tdmpc2/src/wm_tdmpc2"
_NUMERICS_TESTS = "packages/wm-numerics/tests"
_COLLECT_TESTS = "packages/wm-collect/tests"
_TESTS = "packages/wm-tdmpc2/tests"

_CODING = f"{_NUMERICS_TESTS}/parity/test_tdmpc2_numerics_parity.py"
_FUNCTIONS = f"{_TESTS}/parity/test_world_model_parity.py"
_UPDATE = f"{_TESTS}/parity/test_update_parity.py"
_PLANNER = f"{_TESTS}/parity/test_planner_parity.py"
_DROPOUT = f"{_TESTS}/parity/test_dropout_parity.py"
_CONFIG = f"{_TESTS}/parity/test_config_parity.py"
_RUN = f"{_TESTS}/parity/test_schedule_parity.py"
_EPISODES = f"{_TESTS}/parity/test_episodic_replay_parity.py"

_LOSSES = f"{_UPDATE}::test_losses_per_step_match_5f6fade"
_GRADIENTS = f"{_UPDATE}::test_world_model_gradients_match_5f6fade"
_POLICY_GRADIENTS = f"{_UPDATE}::test_policy_gradients_match_5f6fade"
_TARGETS = f"{_UPDATE}::test_td_targets_match_5f6fade"
_METRICS = f"{_UPDATE}::test_metrics_match_5f6fade"
_PARAMETERS = f"{_UPDATE}::test_parameters_after_every_call_match_5f6fade"
_NORMS = f"{_UPDATE}::test_clip_norms_match_5f6fade"
_SCALE = f"{_UPDATE}::test_running_scale_chain_matches_5f6fade"
_EMBEDDINGS = f"{_UPDATE}::test_embeddings_are_renormalised_where_5f6fade_renormalises"
_TERMINATIONS = f"{_UPDATE}::test_termination_logits_and_losses_match_e9f5932"
_VALUES = f"{_PLANNER}::test_values_of_every_candidate_and_iteration_match_5f6fade"
_REFIT = f"{_PLANNER}::test_sampling_distributions_match_5f6fade"
_CHOICE = f"{_PLANNER}::test_chosen_elite_and_action_match_5f6fade"

_OF_NUMERICS = (
    Fault(
        name="bins_spaced_by_their_number",
        file=f"{_NUMERICS}/distributional.py",
        before=(
            "lower = np.linspace(-two_hot.limit, two_hot.limit, two_hot.num_bins)[: half + odd]"
        ),
        after=(
            "lower = np.linspace(\n"
            "            -two_hot.limit, two_hot.limit, two_hot.num_bins, endpoint=False\n"
            "        )[: half + odd]"
        ),
        why="the range is divided by K instead of K − 1",
        tests=(_CODING,),
    ),
    Fault(
        name="targets_not_in_symlog_space",
        file=f"{_NUMERICS}/distributional.py",
        before='x = symlog(y) if self.bin_space == "symlog" else y',
        after="x = y",
        why="targets are encoded in raw units",
        tests=(_CODING,),
    ),
    Fault(
        name="values_left_in_symlog_space",
        file=f"{_NUMERICS}/distributional.py",
        before='return symexp(x) if self.bin_space == "symlog" else x',
        after="return x",
        why="decoded values are not brought back to raw units",
        tests=(_CODING,),
    ),
    Fault(
        name="gradient_of_the_decoded_mean_not_centred",
        file=f"{_NUMERICS}/distributional.py",
        before="slope = jax.nn.softmax(logits, axis=-1) * (bins - mean[..., None])",
        after="slope = jax.nn.softmax(logits, axis=-1) * jnp.broadcast_to(bins, logits.shape)",
        why="the derivative of the softmax's denominator is missing",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="slope_of_symexp_too_small_by_one",
        file=f"{_NUMERICS}/distributional.py",
        before="return _symexp(x), x_dot * jnp.exp(jnp.abs(x))",
        after="return _symexp(x), x_dot * jnp.expm1(jnp.abs(x))",
        why="the derivative of exp − 1 is exp",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="scale_without_floor",
        file=f"{_NUMERICS}/normalizers.py",
        before="spread = jnp.maximum(jnp.ones_like(high), high - low)",
        after="spread = high - low",
        why="small ranges pull the scale below 1",
        tests=(_CODING,),
    ),
    Fault(
        name="scale_of_other_percentiles",
        file=f"{_NUMERICS}/normalizers.py",
        before="percentile(jax.lax.stop_gradient(x), (5.0, 95.0))",
        after="percentile(jax.lax.stop_gradient(x), (10.0, 90.0))",
        why="10 and 90 instead of 5 and 95",
        tests=(_CODING,),
    ),
    Fault(
        name="scale_starts_at_zero",
        file=f"{_NUMERICS}/normalizers.py",
        before="return RunningScaleState(scale=jnp.ones(()))",
        after="return RunningScaleState(scale=jnp.zeros(()))",
        why="the first losses are divided by a hundredth",
        tests=(_CODING,),
    ),
    Fault(
        name="percentiles_not_interpolated",
        file=f"{_NUMERICS}/normalizers.py",
        before="value = low * low_weight + jnp.take(ordered, above) * high_weight",
        after="value = low",
        why="the element below the position is taken",
        tests=(_CODING,),
    ),
    Fault(
        name="slope_of_mish_is_its_gate",
        file=f"{_NUMERICS}/blocks.py",
        before="slope = gate + 4 * saturated * (t * inverse) * ((t + 1) * inverse)",
        after="slope = gate",
        why="the derivative of x·g(x) is not g(x)",
        tests=(_CODING,),
    ),
    Fault(
        name="layer_norm_with_default_eps",
        file=f"{_NUMERICS}/blocks.py",
        before="return nn.LayerNorm(epsilon=eps, use_fast_variance=False, name=name)",
        after="return nn.LayerNorm(use_fast_variance=False, name=name)",
        why="flax's 1e-6 instead of 1e-5",
        tests=(_CODING, _LOSSES),
    ),
    Fault(
        name="weights_truncated_at_two_deviations",
        file=f"{_NUMERICS}/initializers.py",
        before="return jax.nn.initializers.normal(stddev)",
        after="return jax.nn.initializers.truncated_normal(stddev)",
        why="the original truncates at ±2, which is a hundred deviations",
        tests=(_CONFIG,),
    ),
    Fault(
        name="kept_units_not_scaled_up",
        file=f"{_NUMERICS}/dropout.py",
        before="x * (1 / (1 - rate)))",
        after="x)",
        why="dropout makes the mean smaller",
        tests=(f"{_NUMERICS_TESTS}/unit/test_dropout.py",),
    ),
    Fault(
        name="dropped_units_never_side_by_side",
        file=f"{_NUMERICS}/dropout.py",
        before="return _running_sum(gaps + 1) - 1",
        after="return _running_sum(gaps + 2) - 2",
        why="the gap between two dropped units is one too wide",
        tests=(f"{_NUMERICS_TESTS}/unit/test_dropout.py",),
    ),
)

_OF_THE_NETWORKS = (
    Fault(
        name="simnorm_over_strided_groups",
        file=f"{_TDMPC2}/networks.py",
        before="return jax.nn.softmax(groups, axis=-1).reshape(x.shape)",
        after="return jax.nn.softmax(groups, axis=-2).reshape(x.shape)",
        why="the softmax goes across groups instead of within each",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="simnorm_before_layer_norm",
        file=f"{_TDMPC2}/networks.py",
        before="return simnorm(self.norm(self.trunk.from_preactivation(h)), self.simnorm_dim)",
        after="return self.norm(simnorm(self.trunk.from_preactivation(h), self.simnorm_dim))",
        why="latents are no probability vectors",
        tests=(_LOSSES,),
    ),
    Fault(
        name="norm_eps_of_flax",
        file=f"{_TDMPC2}/networks.py",
        before="NORM_EPS = 1e-5",
        after="NORM_EPS = 1e-6",
        why="flax's default instead of torch's",
        tests=(_FUNCTIONS, _LOSSES),
    ),
    Fault(
        name="silu_instead_of_mish",
        file=f"{_TDMPC2}/networks.py",
        before='activation="mish"',
        after='activation="silu"',
        why="the other agent's activation",
        tests=(_LOSSES,),
    ),
    Fault(
        name="value_heads_start_at_random",
        file=f"{_TDMPC2}/networks.py",
        before="return _mlp((config.mlp_dim, config.mlp_dim), config.num_bins, zero_out=True)",
        after="return _mlp((config.mlp_dim, config.mlp_dim), config.num_bins)",
        why="first rewards and values are not 0",
        tests=(_CONFIG,),
    ),
    Fault(
        name="encoder_one_layer_too_deep",
        file=f"{_TDMPC2}/networks.py",
        before="(config.enc_dim,) * config.hidden_enc_layers",
        after="(config.enc_dim,) * config.num_enc_layers",
        why="the number of encoder layers counts the output layer",
        tests=(_CONFIG,),
    ),
    Fault(
        name="dropout_switched_off",
        file=f"{_TDMPC2}/networks.py",
        before="if config.dropout > 0:",
        after="if config.dropout > 1:",
        why="as in a later version, where values for targets and plans see no dropout",
        tests=(_DROPOUT,),
    ),
    Fault(
        name="members_share_their_dropout_mask",
        file=f"{_TDMPC2}/networks.py",
        before="h = dropout(h, dropout_key, config.dropout)",
        after="h = h * dropout(jnp.ones_like(h[:1]), dropout_key, config.dropout)",
        why="every member drops the same units",
        tests=(_DROPOUT,),
    ),
    Fault(
        name="embeddings_start_positive",
        file=f"{_TDMPC2}/networks.py",
        before="minval=-TASK_EMB_RANGE,",
        after="minval=0.0,",
        why="embeddings are to be spread evenly around 0",
        tests=(f"{_TESTS}/unit/test_task_context.py",),
    ),
)

_OF_THE_MODEL = (
    Fault(
        name="dynamics_reads_action_before_embedding",
        file=f"{_TDMPC2}/world_model.py",
        before=(
            "    za = _rows(_joined(z, embedding, action))\n"
            "    latent = apply(dynamics_module(config)"
        ),
        after=(
            "    za = _rows(_joined(z, action, embedding))\n"
            "    latent = apply(dynamics_module(config)"
        ),
        why="the embedding of a task follows the latent",
        tests=(f"{_LOSSES}[multitask]",),
    ),
    Fault(
        name="policy_halves_swapped",
        file=f"{_TDMPC2}/world_model.py",
        before="mean, raw_log_std = jnp.split(",
        after="raw_log_std, mean = jnp.split(",
        why="the first half of the output is the mean",
        tests=(f"{_UPDATE}::test_policy_at_the_latents_matches_5f6fade",),
    ),
    Fault(
        name="log_std_clipped",
        file=f"{_TDMPC2}/world_model.py",
        before="return config.log_std_min + half_range * (jnp.tanh(raw) + 1)",
        after="return jnp.clip(raw, config.log_std_min, config.log_std_min + 2 * half_range)",
        why="the range is to be reached through a tanh",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="log_pi_all_scaled_by_the_dimensions",
        file=f"{_TDMPC2}/world_model.py",
        before="log_pi = n_dims * gaussian - jnp.sum(jnp.log(room), axis=-1)",
        after="log_pi = n_dims * (gaussian - jnp.sum(jnp.log(room), axis=-1))",
        why="the correction for the tanh is not scaled",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="gaussian_constant_per_dimension",
        file=f"{_TDMPC2}/world_model.py",
        before="jnp.sum(-0.5 * jnp.square(eps) - log_std, axis=-1) - HALF_LOG_2PI",
        after="jnp.sum(-0.5 * jnp.square(eps) - log_std - HALF_LOG_2PI, axis=-1)",
        why="as in a later version: the constant counts once per dimension",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="squash_correction_added",
        file=f"{_TDMPC2}/world_model.py",
        before="log_pi = n_dims * gaussian - jnp.sum(jnp.log(room), axis=-1)",
        after="log_pi = n_dims * gaussian + jnp.sum(jnp.log(room), axis=-1)",
        why="sign of the Jacobian",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="squash_correction_with_adams_eps",
        file=f"{_TDMPC2}/world_model.py",
        before="TANH_EPS = 1e-6",
        after="TANH_EPS = 1e-8",
        why="the log-probability of a saturated action is larger by ln 100",
        tests=(_FUNCTIONS,),
    ),
    Fault(
        name="padded_dimensions_counted",
        file=f"{_TDMPC2}/world_model.py",
        before="        n_dims = jnp.sum(mask, axis=-1)\n",
        after="",
        why="the Gaussian part is scaled by the padded action's dimensions",
        tests=(f"{_UPDATE}::test_log_pi_matches_5f6fade_up_to_the_rounding_of_a_saturated_tanh",),
    ),
    Fault(
        name="padded_dimensions_get_noise",
        file=f"{_TDMPC2}/world_model.py",
        before="mean, log_std, eps = mean * mask, log_std * mask, eps * mask",
        after="mean, log_std = mean * mask, log_std * mask",
        why="actions are not 0 in dimensions a task does not have",
        tests=(f"{_UPDATE}::test_sampled_actions_match_5f6fade",),
    ),
    Fault(
        name="one_member_twice_in_a_pair",
        file=f"{_TDMPC2}/world_model.py",
        before="values_of(select_member(q_params, pair[i]), key)[0]",
        after="values_of(select_member(q_params, pair[0]), key)[0]",
        why="the minimum is over one member",
        tests=(f"{_UPDATE}::test_values_of_the_drawn_pair_match_5f6fade",),
    ),
    Fault(
        name="short_embeddings_stretched",
        file=f"{_TDMPC2}/task_context.py",
        before="return jnp.where(present & (norm > MAX_NORM), shrunk, table)",
        after="return jnp.where(present, shrunk, table)",
        why="rows inside the ball stay as they are",
        tests=(_EMBEDDINGS,),
    ),
    Fault(
        name="absent_tasks_renormalised",
        file=f"{_TDMPC2}/task_context.py",
        before="return jnp.where(present & (norm > MAX_NORM), shrunk, table)",
        after="return jnp.where(norm > MAX_NORM, shrunk, table)",
        why="only rows that are looked up are shrunk",
        tests=(_EMBEDDINGS,),
    ),
    Fault(
        name="decisions_forget_their_task",
        file=f"{_TDMPC2}/task_context.py",
        before="return with_first_linear(params, kernel, bias + constant)",
        after="return with_first_linear(params, kernel, bias)",
        why="the planner sees the same networks for every task",
        tests=(f"{_PLANNER}::test_policy_trajectories_match_5f6fade",),
    ),
    Fault(
        name="decisions_read_long_embeddings",
        file=f"{_TDMPC2}/task_context.py",
        before='embedding = renormalised(wm_params["task_emb"], task.task)[task.task]',
        after='embedding = wm_params["task_emb"][task.task]',
        why="a look-up in the planner renormalises too",
        tests=(f"{_PLANNER}::test_policy_trajectories_match_5f6fade",),
    ),
    Fault(
        name="discount_of_one_step_more",
        file=f"{_TDMPC2}/config.py",
        before="return min(max((f - 1) / f, minimum), maximum)",
        after="return min(max(f / (f + 1), minimum), maximum)",
        why="f / (f + 1) instead of (f − 1) / f",
        tests=(_CONFIG,),
    ),
    Fault(
        name="seed_phase_of_one_episode",
        file=f"{_TDMPC2}/config.py",
        before="return max(MIN_SEED_STEPS, SEED_EPISODES * episode_length)",
        after="return max(MIN_SEED_STEPS, episode_length)",
        why="five episodes at least",
        tests=(f"{_TESTS}/unit/test_config.py",),
    ),
)

_OF_THE_UPDATE = (
    Fault(
        name="target_of_the_current_observation",
        file=f"{_TDMPC2}/update.py",
        before="world_model.encode(state.wm_params, batch.obs[1:], config=config, **tasked)",
        after="world_model.encode(state.wm_params, batch.obs[:-1], config=config, **tasked)",
        why="the value of the observation a step leads to is one later",
        tests=(_TARGETS,),
    ),
    Fault(
        name="target_action_is_the_mean",
        file=f"{_TDMPC2}/update.py",
        before="noise.td_eps, config=config, **masked).action",
        after="noise.td_eps, config=config, **masked).mean",
        why="the action in a target is sampled",
        tests=(_TARGETS,),
    ),
    Fault(
        name="target_from_the_online_q",
        file=f"{_TDMPC2}/update.py",
        before="        state.target_q_params,\n        next_z,",
        after='        state.wm_params["q"],\n        next_z,',
        why="the target network is not used",
        tests=(_TARGETS,),
    ),
    Fault(
        name="target_is_the_mean_of_the_pair",
        file=f"{_TDMPC2}/update.py",
        before="value = jnp.min(values, axis=0)",
        after="value = jnp.mean(values, axis=0)",
        why="targets take the minimum, plans and policies the mean",
        tests=(_TARGETS,),
    ),
    Fault(
        name="reward_discounted",
        file=f"{_TDMPC2}/update.py",
        before="target = batch.reward + gamma * value",
        after="target = gamma * (batch.reward + value)",
        why="the discount is of the value alone",
        tests=(_TARGETS,),
    ),
    Fault(
        name="terminations_bootstrapped",
        file=f"{_TDMPC2}/update.py",
        before="value = (1 - _terminated(batch)) * value",
        after="value = jnp.ones_like(_terminated(batch)) * value",
        why="nothing comes after a termination",
        tests=(_TARGETS,),
    ),
    Fault(
        name="all_tasks_discounted_alike",
        file=f"{_TDMPC2}/update.py",
        before=(
            "gamma = config.gamma if task is None else jnp.broadcast_to(task.discount, value.shape)"
        ),
        after="gamma = config.gamma",
        why="tasks of other lengths have other discounts",
        tests=(_TARGETS,),
    ),
    Fault(
        name="gradients_stop_between_steps",
        file=f"{_TDMPC2}/update.py",
        before="z = world_model.next(wm_params, z, batch.action[t], config=config, **tasked)",
        after=(
            "z = world_model.next(\n"
            "            wm_params, jax.lax.stop_gradient(z), batch.action[t], "
            "config=config, **tasked\n"
            "        )"
        ),
        why="the encoder does not learn from later steps",
        tests=(_GRADIENTS,),
    ),
    Fault(
        name="loss_weights_one_power_too_high",
        file=f"{_TDMPC2}/update.py",
        before="weight = config.rho ** jnp.arange(config.horizon) / config.horizon",
        after="weight = config.rho ** jnp.arange(1, config.horizon + 1) / config.horizon",
        why="the first step has weight 1",
        tests=(_METRICS,),
    ),
    Fault(
        name="loss_weights_normalised",
        file=f"{_TDMPC2}/update.py",
        before="weight = config.rho ** jnp.arange(config.horizon) / config.horizon",
        after=(
            "weight = config.rho ** jnp.arange(config.horizon)\n    weight = weight / weight.sum()"
        ),
        why="sums are divided by H, not by the sum of the weights",
        tests=(_METRICS,),
    ),
    Fault(
        name="consistency_summed_over_features",
        file=f"{_TDMPC2}/update.py",
        before="mse = jnp.mean(jnp.square(zs[1:] - next_z), axis=(1, 2))",
        after="mse = jnp.mean(jnp.sum(jnp.square(zs[1:] - next_z), axis=2), axis=1)",
        why="the loss grows with the latent's width",
        tests=(_METRICS,),
    ),
    Fault(
        name="consistency_one_step_apart",
        file=f"{_TDMPC2}/update.py",
        before="jnp.square(zs[1:] - next_z)",
        after="jnp.square(zs[:-1] - next_z)",
        why="predicted latents are compared with the next observation's",
        tests=(_METRICS,),
    ),
    Fault(
        name="reward_of_the_next_latent",
        file=f"{_TDMPC2}/update.py",
        before="world_model.reward(wm_params, zs[:-1], batch.action, config=config, **tasked)",
        after="world_model.reward(wm_params, zs[1:], batch.action, config=config, **tasked)",
        why="the reward is read at the latent and the action before it",
        tests=(_METRICS,),
    ),
    Fault(
        name="value_loss_summed_over_members",
        file=f"{_TDMPC2}/update.py",
        before="value_loss = jnp.sum(weight * jnp.mean(value_ce, axis=(0, 2)))",
        after="value_loss = jnp.sum(weight * jnp.sum(jnp.mean(value_ce, axis=2), axis=0))",
        why="the loss grows with the number of members",
        tests=(_METRICS,),
    ),
    Fault(
        name="termination_read_one_latent_early",
        file=f"{_TDMPC2}/update.py",
        before="logits = world_model.termination(wm_params, zs[1:], config=config)",
        after="logits = world_model.termination(wm_params, zs[:-1], config=config)",
        why="a termination shows in the latent it leads to",
        tests=(_TERMINATIONS,),
    ),
    Fault(
        name="termination_loss_not_trained",
        file=f"{_TDMPC2}/update.py",
        before='total = total + config.termination_coef * metrics["termination_loss"]',
        after='total = total + 0 * metrics["termination_loss"]',
        why="the term is reported but not part of the total",
        tests=(f"{_METRICS}[episodic]",),
    ),
    Fault(
        name="policy_maximises_the_minimum",
        file=f"{_TDMPC2}/update.py",
        before="value = jnp.mean(values, axis=0)",
        after="value = jnp.min(values, axis=0)",
        why="the policy's loss takes the mean of the pair",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="scale_of_all_steps",
        file=f"{_TDMPC2}/update.py",
        before=".update(q_scale, jax.lax.stop_gradient(value[0]))",
        after=".update(q_scale, jax.lax.stop_gradient(value))",
        why="percentiles are those of the first step's values",
        tests=(_SCALE,),
    ),
    Fault(
        name="scale_used_before_its_update",
        file=f"{_TDMPC2}/update.py",
        before=(
            "    q_scale = RunningScale(tau=config.tau).update(q_scale, "
            "jax.lax.stop_gradient(value[0]))\n"
            "    weight = config.rho ** jnp.arange(config.horizon + 1) / (config.horizon + 1)\n"
            "    objective = config.entropy_coef * sample.log_pi - value / q_scale.scale\n"
        ),
        after=(
            "    weight = config.rho ** jnp.arange(config.horizon + 1) / (config.horizon + 1)\n"
            "    objective = config.entropy_coef * sample.log_pi - value / q_scale.scale\n"
            "    q_scale = RunningScale(tau=config.tau).update(q_scale, "
            "jax.lax.stop_gradient(value[0]))\n"
        ),
        why="the values of a batch are part of the scale they are divided by",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="values_multiplied_by_their_scale",
        file=f"{_TDMPC2}/update.py",
        before="- value / q_scale.scale",
        after="- value * q_scale.scale",
        why="the original multiplies, by the inverse",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="policy_entropy_is_punished",
        file=f"{_TDMPC2}/update.py",
        before="objective = config.entropy_coef * sample.log_pi - value / q_scale.scale",
        after="objective = -config.entropy_coef * sample.log_pi - value / q_scale.scale",
        why="sign of the log-probability",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="policy_loss_divided_by_the_horizon",
        file=f"{_TDMPC2}/update.py",
        before="jnp.arange(config.horizon + 1) / (config.horizon + 1)",
        after="jnp.arange(config.horizon + 1) / config.horizon",
        why="it is a mean over the H + 1 latents",
        tests=(_POLICY_GRADIENTS,),
    ),
    Fault(
        name="policy_trained_on_values_before_the_step",
        file=f"{_TDMPC2}/update.py",
        before="        wm_params,\n        jax.lax.stop_gradient(zs),",
        after="        state.wm_params,\n        jax.lax.stop_gradient(zs),",
        why="the policy learns from the Q networks after their step",
        tests=(_PARAMETERS,),
    ),
    Fault(
        name="target_rate_complemented",
        file=f"{_TDMPC2}/update.py",
        before='optax.incremental_update(wm_params["q"], state.target_q_params, config.tau)',
        after='optax.incremental_update(wm_params["q"], state.target_q_params, 1 - config.tau)',
        why="the target jumps to the new Q",
        tests=(_PARAMETERS,),
    ),
    Fault(
        name="target_follows_q_before_the_step",
        file=f"{_TDMPC2}/update.py",
        before='optax.incremental_update(wm_params["q"], state.target_q_params, config.tau)',
        after='optax.incremental_update(state.wm_params["q"], state.target_q_params, config.tau)',
        why="the target network is one update late",
        tests=(_PARAMETERS,),
    ),
    Fault(
        name="clip_forgets_the_policy_gradient",
        file=f"{_TDMPC2}/update.py",
        before="grad_norm = jnp.sqrt(own_norm_sq + state.pi_grad_norm_sq)",
        after="grad_norm = jnp.sqrt(own_norm_sq)",
        why="the original's norm includes the policy's gradient of the last update",
        tests=(_NORMS,),
    ),
    Fault(
        name="carried_policy_gradient_not_clipped",
        file=f"{_TDMPC2}/update.py",
        before="jnp.square(pi_coefficient * pi_norm),",
        after="jnp.square(pi_norm),",
        why="what is left of the last update is its gradient after the clip",
        tests=(_NORMS,),
    ),
    Fault(
        name="policy_gradient_not_clipped",
        file=f"{_TDMPC2}/update.py",
        before="scale_gradients(pi_grads, pi_coefficient), state.pi_opt_state",
        after="pi_grads, state.pi_opt_state",
        why="the coefficient is computed but not used",
        tests=(f"{_UPDATE}::test_adam_moments_after_the_last_call_match_5f6fade", _PARAMETERS),
    ),
    Fault(
        name="embeddings_not_renormalised_at_first",
        file=f"{_TDMPC2}/update.py",
        before=(
            "state = dataclasses.replace(state, wm_params=_renormalised(state.wm_params, task))"
        ),
        after="state = dataclasses.replace(state, wm_params=state.wm_params)",
        why="the first look-up of an update renormalises",
        tests=(_METRICS,),
    ),
    Fault(
        name="embeddings_not_renormalised_after_the_step",
        file=f"{_TDMPC2}/update.py",
        before="wm_params = _renormalised(wm_params, task)\n    ",
        after="",
        why="the look-up of the policy's loss renormalises what the step made of the table",
        tests=(_EMBEDDINGS, _PARAMETERS),
    ),
    Fault(
        name="encoder_learns_at_the_full_rate",
        file=f"{_TDMPC2}/optimizer.py",
        before="if callable(rate) else rate * scale",
        after="if callable(rate) else rate",
        why="the encoder's rate is scaled by 0.3",
        tests=(_PARAMETERS,),
    ),
    Fault(
        name="world_model_with_the_policys_eps",
        file=f"{_TDMPC2}/optimizer.py",
        before="WORLD_MODEL_EPS = 1e-8",
        after="WORLD_MODEL_EPS = 1e-5",
        why="Adam's eps is 1e-8 for the world model and 1e-5 for the policy",
        tests=(_PARAMETERS,),
    ),
    Fault(
        name="policy_with_the_world_models_eps",
        file=f"{_TDMPC2}/optimizer.py",
        before="return optax.adam(config.learning_rate, eps=config.pi_eps)",
        after="return optax.adam(config.learning_rate, eps=WORLD_MODEL_EPS)",
        why="Adam's eps is 1e-8 for the world model and 1e-5 for the policy",
        tests=(_PARAMETERS,),
    ),
    Fault(
        name="small_gradients_scaled_up_to_the_clip",
        file=f"{_TDMPC2}/optimizer.py",
        before="return jnp.minimum(1.0, config.grad_clip_norm / (norm + CLIP_EPS))",
        after="return config.grad_clip_norm / (norm + CLIP_EPS)",
        why="a clip only makes gradients smaller",
        tests=(_NORMS,),
    ),
)

_OF_THE_PLANNER = (
    Fault(
        name="warm_start_not_shifted",
        file=f"{_TDMPC2}/planner.py",
        before=("shifted = jnp.concatenate([prev_mean[1:], jnp.zeros_like(prev_mean[:1])])"),
        after="shifted = prev_mean",
        why="the last plan is a step old",
        tests=(_REFIT,),
    ),
    Fault(
        name="warm_start_repeats_its_last_action",
        file=f"{_TDMPC2}/planner.py",
        before="jnp.zeros_like(prev_mean[:1])",
        after="prev_mean[-1:]",
        why="the new last step starts at 0",
        tests=(_REFIT,),
    ),
    Fault(
        name="episode_starts_with_the_last_plan",
        file=f"{_TDMPC2}/planner.py",
        before="mean = jnp.where(t0, jnp.zeros_like(prev_mean), shifted)",
        after="mean = shifted",
        why="the mean starts at 0 in an episode's first decision",
        tests=(_REFIT,),
    ),
    Fault(
        name="candidates_not_clipped",
        file=f"{_TDMPC2}/planner.py",
        before="masked(jnp.clip(mean[:, None] + std[:, None] * mppi_eps, -1, 1))",
        after="masked(mean[:, None] + std[:, None] * mppi_eps)",
        why="actions beyond the box are valued",
        tests=(_VALUES,),
    ),
    Fault(
        name="terminal_value_one_discount_short",
        file=f"{_TDMPC2}/planner.py",
        before="last_value = gamma**config.horizon * jnp.mean(terminal, axis=0)",
        after="last_value = gamma ** (config.horizon - 1) * jnp.mean(terminal, axis=0)",
        why="the value after H steps is discounted H times",
        tests=(_VALUES,),
    ),
    Fault(
        name="terminal_value_is_the_minimum",
        file=f"{_TDMPC2}/planner.py",
        before="jnp.mean(terminal, axis=0)",
        after="jnp.min(terminal, axis=0)",
        why="plans take the mean of the pair",
        tests=(_VALUES,),
    ),
    Fault(
        name="terminal_value_after_a_termination",
        file=f"{_TDMPC2}/planner.py",
        before="jnp.concatenate([pi_rollout.alive, sampled_rollout.alive]) * last_value",
        after="jnp.ones_like(last_value) * last_value",
        why="a candidate that ended has no value any more",
        tests=(f"{_VALUES}[episodic]",),
    ),
    Fault(
        name="candidates_in_another_order",
        file=f"{_TDMPC2}/planner.py",
        before="candidates = jnp.concatenate([pi_actions, sampled], axis=1)",
        after="candidates = jnp.concatenate([sampled, pi_actions], axis=1)",
        why="values are of the policy's trajectories first",
        tests=(_REFIT,),
    ),
    Fault(
        name="temperature_divides",
        file=f"{_TDMPC2}/planner.py",
        before="score = jnp.exp(config.temperature * (elite_value - elite_value[0]))",
        after="score = jnp.exp((elite_value - elite_value[0]) / config.temperature)",
        why="it is an inverse temperature",
        tests=(f"{_PLANNER}::test_scores_match_5f6fade",),
    ),
    Fault(
        name="deviation_around_the_old_mean",
        file=f"{_TDMPC2}/planner.py",
        before=(
            "        mean = masked(jnp.sum(weight * elites, axis=1))\n"
            "        variance = jnp.sum(weight * jnp.square(elites - mean[:, None]), axis=1)\n"
        ),
        after=(
            "        variance = jnp.sum(weight * jnp.square(elites - mean[:, None]), axis=1)\n"
            "        mean = masked(jnp.sum(weight * elites, axis=1))\n"
        ),
        why="the deviation is that of the elites around their own mean",
        tests=(_REFIT,),
    ),
    Fault(
        name="elites_not_weighted",
        file=f"{_TDMPC2}/planner.py",
        before="weight = (score / (jnp.sum(score) + WEIGHT_EPS))[None, :, None]",
        after="weight = jnp.full((1, config.num_elites, 1), 1 / config.num_elites)",
        why="all elites count alike, as in the cross-entropy method",
        tests=(_REFIT,),
    ),
    Fault(
        name="deviation_without_its_smallest",
        file=f"{_TDMPC2}/planner.py",
        before="jnp.clip(jnp.sqrt(variance), config.min_std, config.max_std)",
        after="jnp.minimum(jnp.sqrt(variance), config.max_std)",
        why="sampling may collapse onto one plan",
        tests=(_REFIT,),
    ),
    Fault(
        name="executed_action_is_the_mean",
        file=f"{_TDMPC2}/planner.py",
        before="action = first_actions[jnp.minimum(drawn, config.num_elites - 1)]",
        after="action = mean[0]",
        why="the executed action is that of an elite",
        tests=(_CHOICE,),
    ),
    Fault(
        name="next_elite_executed",
        file=f"{_TDMPC2}/planner.py",
        before="drawn = jnp.sum(cumulative <= noise.elite_uniform * cumulative[-1])",
        after="drawn = 1 + jnp.sum(cumulative <= noise.elite_uniform * cumulative[-1])",
        why="the number of sums below the draw is the index itself",
        tests=(_CHOICE,),
    ),
    Fault(
        name="exploration_with_the_last_steps_deviation",
        file=f"{_TDMPC2}/planner.py",
        before="action = action + std[0] * noise.final_eps",
        after="action = action + std[-1] * noise.final_eps",
        why="the executed action is the plan's first",
        tests=(_CHOICE,),
    ),
    Fault(
        name="exploration_in_eval_mode",
        file=f"{_TDMPC2}/planner.py",
        before="if not eval_mode:",
        after="if True:",
        why="evaluations leave the final noise out",
        tests=(_CHOICE,),
    ),
    Fault(
        name="first_reward_discounted",
        file=f"{_TDMPC2}/planner.py",
        before="reward = gamma**t * reward",
        after="reward = gamma ** (t + 1) * reward",
        why="the first reward counts in full",
        tests=(_VALUES,),
    ),
    Fault(
        name="reward_into_a_termination_lost",
        file=f"{_TDMPC2}/planner.py",
        before=(
            "        total = total + (alive * reward if config.episodic else reward)\n"
            "        if config.episodic:\n"
            "            logit = world_model.termination(model.wm_params, zs, config=config)\n"
            "            alive = alive * (jax.nn.sigmoid(logit) <= 0.5)\n"
        ),
        after=(
            "        if config.episodic:\n"
            "            logit = world_model.termination(model.wm_params, zs, config=config)\n"
            "            alive = alive * (jax.nn.sigmoid(logit) <= 0.5)\n"
            "        total = total + (alive * reward if config.episodic else reward)\n"
        ),
        why="the reward of the step that leads into a termination counts",
        tests=(f"{_VALUES}[episodic]",),
    ),
    Fault(
        name="terminations_by_their_probability",
        file=f"{_TDMPC2}/planner.py",
        before="alive = alive * (jax.nn.sigmoid(logit) <= 0.5)",
        after="alive = alive * (1 - jax.nn.sigmoid(logit))",
        why="a termination is predicted or not",
        tests=(f"{_VALUES}[episodic]",),
    ),
    Fault(
        name="policy_trajectories_repeat_their_noise",
        file=f"{_TDMPC2}/planner.py",
        before="action = sample_policy(zs, eps[t])",
        after="action = sample_policy(zs, eps[0])",
        why="every step has draws of its own",
        tests=(f"{_PLANNER}::test_policy_trajectories_match_5f6fade",),
    ),
    Fault(
        name="pairs_of_equal_members",
        file=f"{_TDMPC2}/noise.py",
        before="return jnp.stack([first, second + (second >= first)])",
        after="return jnp.stack([first, second])",
        why="the second member may be the first, and never is the last",
        tests=(f"{_TESTS}/unit/test_noise.py",),
    ),
)

_OF_THE_CLOCK_AND_THE_REPLAY = (
    Fault(
        name="burst_one_step_early",
        file=f"{_TDMPC2}/schedule.py",
        before="steps = self.seed_steps // self.n_envs + 1",
        after="steps = self.seed_steps // self.n_envs",
        why="learning begins when the steps exceed those of the seed phase",
        tests=(_RUN,),
    ),
    Fault(
        name="burst_tick_is_planned",
        file=f"{_TDMPC2}/schedule.py",
        before="return tick <= self.burst_tick",
        after="return tick < self.burst_tick",
        why="the action of the step before the burst is random",
        tests=(_RUN,),
    ),
    Fault(
        name="updates_on_held_ticks",
        file=f"{_TDMPC2}/schedule.py",
        before="later = self.seed_steps + (ticks - held) * self.updates_per_tick",
        after="later = self.seed_steps + ticks * self.updates_per_tick",
        why="the tick that emits an episode's last row takes no step and makes no update",
        tests=(_RUN,),
    ),
    Fault(
        name="an_update_besides_the_burst",
        file=f"{_TDMPC2}/schedule.py",
        before="ticks = tick - 1 - burst",
        after="ticks = tick - burst",
        why="the tick of the burst makes no other update",
        tests=(_RUN,),
    ),
    Fault(
        name="rewards_one_row_early",
        file=f"{_COLLECT}/replay/episodes.py",
        before="reward=read_rows(state.reward, index[1:], n_axes=3)",
        after="reward=read_rows(state.reward, index[:-1], n_axes=3)",
        why="a row's reward was received on entering it",
        tests=(_RUN,),
    ),
    Fault(
        name="last_slice_never_drawn",
        file=f"{_COLLECT}/replay/episodes.py",
        before="n_offsets = self.episode_length - self.horizon + 1",
        after="n_offsets = self.episode_length - self.horizon",
        why="the last offset is T − H itself",
        tests=(_RUN,),
    ),
    Fault(
        name="running_episode_sampled",
        file=f"{_COLLECT}/replay/episodes.py",
        before="return (tick + 1) // (self.episode_length + 1)",
        after="return tick // (self.episode_length + 1) + 1",
        why="a round can be sampled once its last row is there",
        tests=(_RUN,),
    ),
    Fault(
        name="slices_of_the_oldest_slots",
        file=f"{_COLLECT}/replay/episodes.py",
        before="oldest = self._n_complete(tick) - n_committed",
        after="oldest = 0 * n_committed",
        why="once the ring is full the running round is among the first slots",
        tests=(_RUN,),
    ),
    Fault(
        name="slices_never_end_with_a_termination",
        file=f"{_COLLECT}/replay/variable_episodes.py",
        before="n_offsets = jnp.maximum(end - first + 1 - self.horizon, 1)",
        after="n_offsets = jnp.maximum(end - first - self.horizon, 1)",
        why="the last offset is left out",
        tests=(_EPISODES,),
    ),
    Fault(
        name="episodes_of_h_rows_listed",
        file=f"{_COLLECT}/replay/variable_episodes.py",
        before="listed = row.is_last & (n_rows > self.horizon)",
        after="listed = row.is_last & (n_rows >= self.horizon)",
        why="a slice of H steps has H + 1 rows",
        tests=(_EPISODES,),
    ),
    Fault(
        name="terminations_one_row_early",
        file=f"{_COLLECT}/replay/variable_episodes.py",
        before="terminated=read_rows(state.is_terminal, index[1:])",
        after="terminated=read_rows(state.is_terminal, index[:-1])",
        why="a termination belongs to the step that led into it",
        tests=(_EPISODES,),
    ),
    Fault(
        name="shortened_episodes_stay_too_long",
        file=f"{_COLLECT}/replay/variable_episodes.py",
        before="return tick - self.capacity + self.horizon + 1",
        after="return tick - self.capacity + self.horizon",
        why="an episode with H rows left can still be sampled",
        tests=(f"{_COLLECT_TESTS}/unit/test_variable_episodes.py",),
    ),
    Fault(
        name="collected_flag_of_resets_one_tick_early",
        file=f"{_COLLECT}/collector.py",
        before="is_first=jnp.broadcast_to(held, (n_envs,)),\n        is_last=is_last,",
        after="is_first=is_last,\n        is_last=is_last,",
        why="the row after a held tick is the first one, not the held row itself",
        tests=(_RUN,),
    ),
)

FAULTS = (
    *_OF_NUMERICS,
    *_OF_THE_NETWORKS,
    *_OF_THE_MODEL,
    *_OF_THE_UPDATE,
    *_OF_THE_PLANNER,
    *_OF_THE_CLOCK_AND_THE_REPLAY,
)
