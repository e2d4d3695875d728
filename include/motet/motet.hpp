// SPDX-License-Identifier: Apache-2.0
// Motet in one include. Start with Checkpoint::open, then plan(), then Layer::create, then Layer::forward.
#pragma once

#include "motet/checkpoint.h"
#include "motet/error.h"
#include "motet/executor.h"
#include "motet/group.h"
#include "motet/layer.h"
#include "motet/machine.h"
#include "motet/plan.h"
#include "motet/registry.h"
#include "motet/spec.h"
#include "motet/tensors.h"
#include "motet/types.h"
#include "motet/verify.h"
