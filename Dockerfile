# Runs the demo and writes demo/report.html; docs/install.md explains the options:
#   docker build --tag asterism .
#   docker run --rm --shm-size=2g --user "$(id -u)" -v "$PWD:/work" asterism
# For NVIDIA GPUs: `docker build --build-arg VARIANT=cuda --tag asterism:cuda .`, and `docker run --gpus all …`.
ARG VARIANT=cpu

FROM python:3.12-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# The usual torch brings CUDA's libraries and also runs without a GPU. Torch's own index of CPU builds has the same versions at a
# tenth of the size, which pip prefers because of their suffix "+cpu": give its address with --build-arg TORCH_INDEX=…
FROM base AS cuda
FROM base AS cpu
ARG TORCH_INDEX=
ENV PIP_EXTRA_INDEX_URL=${TORCH_INDEX}

FROM ${VARIANT}
WORKDIR /opt/asterism
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY asterism ./asterism
RUN pip install --constraint constraints.txt '.[all]'

# Caches go to /tmp, so that any user may run it: with --user, results belong to the one who started it.
ENV HOME=/tmp
RUN useradd --no-create-home --uid 1000 asterism && mkdir /work && chown asterism /work
USER asterism
WORKDIR /work
ENTRYPOINT ["asterism"]
CMD ["demo", "--out", "demo", "--overwrite"]
