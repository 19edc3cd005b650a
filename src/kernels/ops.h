// The contracts of all ops, for those who implement, check or test every one.
#pragma once

#include "kernels/attention.h"
#include "kernels/balance.h"
#include "kernels/combine.h"
#include "kernels/embedding.h"
#include "kernels/experts.h"
#include "kernels/few_tokens.h"
#include "kernels/log_prob.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"
#include "kernels/pack.h"
#include "kernels/plan.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/sample.h"
