# The orchestrator in a container: the controller in the foreground, its state in a volume (docs/container.md).
# It does not need BuildKit. pip's mirrors and certificates are build arguments.
ARG PYTHON_IMAGE
# An empty argument also means the default, because docker-compose 1.29 passes empty ones.
FROM ${PYTHON_IMAGE:-python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d} AS python

# --- The wheel --------------------------------------------------------------------------------------------
FROM python AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY scripts/build.lock ./
RUN python -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r build.lock
COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY docs/*.md docs/
COPY docs/examples docs/examples
COPY orchestrator orchestrator
RUN python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels .

# --- The dependencies, then the wheel: if only our code changes, they are not installed again ----------------
FROM python AS install
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/orchestrator
# Every package has a hash, and nothing is looked up or built. So a changed package on a mirror is refused.
COPY scripts/runtime.lock ./
RUN python -m pip --python /opt/orchestrator install --quiet --require-hashes --no-deps --only-binary :all: \
    -r runtime.lock
COPY --from=wheel /wheels /wheels
RUN python -m pip --python /opt/orchestrator install --quiet --no-index --no-deps /wheels/*.whl \
    && python -m pip --python /opt/orchestrator check
# The licences of all packages that the image adds to its base.
COPY LICENSE NOTICE scripts/notices.py ./
RUN mkdir -p /opt/orchestrator/share/licenses && cp LICENSE NOTICE /opt/orchestrator/share/licenses/ \
    && /opt/orchestrator/bin/python notices.py > /opt/orchestrator/share/licenses/THIRD-PARTY-NOTICES

# --- The image --------------------------------------------------------------------------------------------
FROM python
LABEL org.opencontainers.image.title="orchestrator" \
      org.opencontainers.image.description="Finishes long training runs on machines whose sessions run out" \
      org.opencontainers.image.licenses="Apache-2.0"
# Not every base has useradd, so this adds the user by hand. A new volume gets the owner of the folder it covers.
RUN echo 'orchestrator:x:1000:1000::/var/lib/orchestrator:/bin/sh' >> /etc/passwd \
    && echo 'orchestrator:x:1000:' >> /etc/group \
    && mkdir -p /var/lib/orchestrator && chown 1000:1000 /var/lib/orchestrator \
    && chmod 700 /var/lib/orchestrator
COPY --from=install /opt/orchestrator /opt/orchestrator
ENV PATH=/opt/orchestrator/bin:$PATH \
    HOME=/var/lib/orchestrator \
    ORCHESTRATOR_HOME=/var/lib/orchestrator \
    LANG=C.UTF-8
USER 1000:1000
WORKDIR /var/lib/orchestrator
VOLUME /var/lib/orchestrator
# Healthy only while the controller of this home's database runs and ticks.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 CMD ["orchestrator", "health"]
ENTRYPOINT ["orchestrator"]
CMD ["up"]
