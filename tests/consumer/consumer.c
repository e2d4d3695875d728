/* SPDX-License-Identifier: Apache-2.0
 * Plans and runs one layer of the checkpoint in argv[1] through the C ABI, then asks for more tokens than planned. */
#include <motet/motet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* call) {
  fprintf(stderr, "%s: %s\n", call, motet_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  motet_checkpoint* checkpoint = NULL;
  if (motet_checkpoint_open(argv[1], &checkpoint) != MOTET_OK) return failed("open");
  const int64_t number = motet_checkpoint_layer_number(checkpoint, 0);
  motet_layer_info info = MOTET_LAYER_INFO_INIT;
  if (motet_checkpoint_layer_info(checkpoint, number, &info) != MOTET_OK) return failed("info");
  motet_deployment deployment = MOTET_DEPLOYMENT_INIT;
  deployment.tokens = 3;
  deployment.input = MOTET_F32;
  motet_plan* plan = NULL;
  if (motet_plan_create(checkpoint, number, &deployment, &plan) != MOTET_OK) return failed("plan");
  if (strstr(motet_plan_json(plan), "motet.plan/1") == NULL || strlen(motet_plan_fingerprint(plan)) != 32) return 1;
  motet_layer* layer = NULL;
  if (motet_layer_create(checkpoint, plan, &layer) != MOTET_OK) return failed("create");
  motet_checkpoint_release(checkpoint);
  const size_t count = (size_t)(4 * info.hidden);
  float* x = malloc(count * sizeof *x);
  float* y = malloc(count * sizeof *y);
  for (size_t i = 0; i < count; ++i) x[i] = (float)((i * 37) % 101) / 101.0F - 0.5F, y[i] = 0;
  motet_forward forward = MOTET_FORWARD_INIT;
  forward.tokens = 3;
  forward.hidden_states = x;
  forward.output = y;
  if (motet_layer_forward(layer, &forward) != MOTET_OK) return failed("forward");
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += y[i] * y[i];
  forward.tokens = 4;
  const motet_status status = motet_layer_forward(layer, &forward);
  printf("%s: sum of squares %g, then %s\n", motet_version(), sum, motet_status_name(status));
  motet_layer_release(layer);
  motet_plan_release(plan);
  free(x);
  free(y);
  return sum > 0 && status == MOTET_TOKENS_EXCEED_PLAN ? 0 : 1;
}
